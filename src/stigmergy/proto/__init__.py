"""The types of a fleet as Protocol Buffers: mapping, stable field numbers, the .proto file, descriptors at run time."""
