# The work of `hugeheap bench cow` in Ruby: SIZE. Builds a heap of about SIZE bytes, forks, and says what each child un-shares.
require "json"

def field(name)
  line = File.foreach("/proc/self/smaps_rollup").find { |text| text.start_with?(name) }
  line ? line.split[1].to_i * 1024 : 0
end

def child(action)
  reader, writer = IO.pipe
  pid = fork do
    before = field("Private_Dirty:")
    start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - start
    told = { action: action, unshared: [0, field("Private_Dirty:") - before].max, seconds: seconds }
    writer.write(JSON.generate(told))
    writer.close
    exit!(0)
  end
  writer.close
  text = reader.read
  Process.wait(pid)
  JSON.parse(text)
end

# About 160 bytes each: an array and three texts. By turns in two lists.
GC.disable
lists = [[], []]
(ARGV[0].to_i / 160).times { |number| lists[number % 2] << [number.to_s, (number + 1).to_s, (number + 2).to_s] }
heap = field("Anonymous:")
children = [
  child("nothing") {},
  child("frees") { lists[1].clear; GC.start },
  child("collects") { GC.start }
]
# Before Ruby 2.7 and where the system lacks it there is no compaction.
begin
  children << child("compacts") { lists[1].clear; GC.compact } if GC.respond_to?(:compact)
rescue JSON::ParserError
  warn "compaction failed"
end
if Process.respond_to?(:warmup)
  Process.warmup
else
  3.times { GC.start }
end
children << child("collects-prepared") { GC.start }
puts JSON.generate({ heap: heap, children: children })
