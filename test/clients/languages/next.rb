# next.rb WAY PATH N SIZE: reads PATH N times and prints what it got.
way, path, n, size = ARGV[0], ARGV[1], ARGV[2].to_i, ARGV[3].to_i
$stdout.binmode
$stdout.sync = true # because copy_stream bypasses the buffer

kept = nil
ways = {
  "binread" => -> { File.binread(path) },
  "read" => -> { File.open(path, "rb", &:read) },
  "sized" => -> { File.open(path, "rb") { |f| f.read(size) } },
  "sysread" => -> { File.open(path, "rb") { |f| f.sysread(size) } },
  "nonblock" => -> { File.open(path, File::RDONLY | File::NONBLOCK) { |f| f.read(size) } },
  "copy_stream" => -> { IO.copy_stream(path, $stdout); "" },
  "rewind" => -> { (kept ||= File.open(path, "rb")).rewind; kept.read(size) },
  "pread" => -> { (kept ||= File.open(path, "rb")).pread(size, 0) },
}
n.times { $stdout.write(ways.fetch(way).call) }
