"""What `stigmergy doctor` looks at: one file for each subject. A check changes nothing and never shows a secret."""
