# next.R WAY PATH N SIZE: reads PATH N times and prints what it got.
args <- commandArgs(trailingOnly = TRUE)
path <- args[2]
size <- as.integer(args[4])

checked <- function(batch) {
  if (length(batch) != size) stop("read ", length(batch), " of ", size, " bytes")
  batch
}

# Each way returns a function that returns the next batch.
ways <- list(
  unchecked = function() function() readBin(path, "raw", size),
  checked = function() function() checked(readBin(path, "raw", size)),
  connection = function() function() {
    con <- file(path, "rb")
    on.exit(close(con))
    checked(readBin(con, "raw", size))
  },
  seek = function() {
    con <- file(path, "rb")
    function() {
      seek(con, 0)
      checked(readBin(con, "raw", size))
    }
  }
)
next_batch <- ways[[args[1]]]()
out <- pipe("cat", "wb")
for (i in seq_len(as.integer(args[3]))) writeBin(next_batch(), out)
invisible(close(out))
