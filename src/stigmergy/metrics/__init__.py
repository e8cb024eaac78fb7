"""What a node measures of itself: the list of all metrics, histograms and sketches of plain integers, and samples."""
