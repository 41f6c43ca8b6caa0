# Three Ruby programs, by name, and what they hold: the peak of RSS, and RSS two seconds after most was dropped.
#   store: a cache of records that are replaced, of which a tenth stays
#   json:  documents of 16 MB, parsed six times
#   rdoc:  Ruby's own documentation of a part of its library
# With a second word they do not wait, for measuring time.
require "json"
require "rdoc/rdoc"
require "tmpdir"

def store
  kept = {}
  600_000.times do |n|
    kept[n % 120_000] = { id: n, name: "name #{n}", tags: Array.new(n % 6) { |i| "tag #{i} " * (n % 9) }, body: "b" * (n * 7919 % 700) }
  end
  kept.select { |key, _| key % 10 == 0 }
end

def json
  draw = Random.new(3)
  text = JSON.generate(Array.new(60_000) { |n| { "id" => n, "scores" => Array.new(8) { draw.rand(10_000) }, "about" => "text " * draw.rand(60) } })
  6.times { JSON.parse(text) }
end

def rdoc
  $stderr = File.open(File::NULL, "w")
  Dir.mktmpdir do |place|
    library = RbConfig::CONFIG["rubylibdir"]
    RDoc::RDoc.new.document(["--quiet", "--ri", "--op", File.join(place, "out"), *Dir[File.join(library, "{net,rdoc,optparse,json,psych,irb,reline}*")]])
  end
end

program = ARGV.fetch(0)
kept = send(program)
exit if ARGV[1]
GC.start
sleep 2
peak = File.read("/proc/self/status")[/VmHWM:\s+(\d+)/, 1].to_i
rss = File.read("/proc/self/status")[/VmRSS:\s+(\d+)/, 1].to_i
puts "#{program}: #{peak >> 10} MiB at the peak, #{rss >> 10} MiB after a pause"
