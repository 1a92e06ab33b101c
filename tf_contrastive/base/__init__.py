"""What every part uses: errors, files, processes and output for people."""
