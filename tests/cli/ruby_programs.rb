# Programs of test_ruby.py, by name: what a Ruby does with memory, processes and threads, and its own libraries. Each prints the same on every allocator.
# Loaded whole before a thread starts: of two threads that load SHA256 on its first use, Ruby 3.1 shows one the class before it is ready ("Digest::Base cannot be directly inherited").
require "digest/sha2"

# Numbers without a library: the same in every process.
class Draw
  def initialize(seed) = @state = seed
  def below(limit) = (@state = (@state * 1103515245 + 12345) & 0x7fffffff) / 65536 % limit
end

def digest(value) = puts(Digest::SHA256.hexdigest(value)[0, 16])

# Strings, arrays, hashes of all sizes, of which some stay.
def churn(seed, steps = 20_000)
  draw = Draw.new(seed)
  kept = Array.new(400)
  steps.times do |step|
    size = draw.below(10) == 0 ? draw.below(40_000) : draw.below(600)
    kept[draw.below(400)] =
      case draw.below(5)
      when 0 then "#{step}." * (size / 8 + 1)
      when 1 then Array.new(size / 16) { |n| n * step }
      when 2 then (0..size / 64).to_h { |n| [n, n.to_s] }
      when 3 then { step: step, name: "n#{size}".to_sym }
      else String.new(capacity: size) << "x" << (step % 256)
      end
    text = kept[step % 400]
    text << "grown" * 10 if text.is_a?(String) && text.size < 100_000
  end
  Digest::SHA256.hexdigest(Marshal.dump(kept))[0, 16]
end

PROGRAMS = {
  "churn" => -> { puts churn(1, 60_000) },

  "numbers" => lambda {
    digest (1..2500).inject(:*).to_s
    digest (3**20_000).to_s
    require "bigdecimal/util"
    puts BigDecimal(2).sqrt(400).to_s
    puts (1..200).sum { |n| Rational(1, n) }
  },

  "libraries" => lambda {
    require "json"; require "yaml"; require "erb"; require "optparse"; require "set"; require "csv"; require "zlib"; require "openssl"; require "stringio"; require "ripper"; require "time"
    rows = Array.new(3000) { |n| { "id" => n, "name" => "user #{n}", "tags" => Array.new(n % 5) { |t| "t#{t}" }, "text" => "é" * (n % 90) } }
    digest JSON.generate(JSON.parse(JSON.pretty_generate(rows)))
    digest YAML.dump(YAML.load(rows.first(600).to_yaml))
    digest ERB.new("<% rows.each do |row| %><li><%= row['name'] %><% end %>").result_with_hash(rows: rows)
    chosen = {}
    OptionParser.new { |o| o.on("-n N", Integer); o.on("--[no-]verbose") }.parse(%w[-n 5 --no-verbose rest], into: chosen)
    p chosen
    p (Set.new(1..5000) ^ Set.new(2500..7500)).size
    digest CSV.generate { |csv| rows.each { |row| csv << row.values_at("id", "name", "text") } }
    deflated = Zlib.deflate(rows.inspect)
    p Zlib.inflate(deflated) == rows.inspect
    puts OpenSSL::Digest.hexdigest("SHA512", rows.inspect)[0, 16]
    cipher = OpenSSL::Cipher.new("aes-256-cbc").encrypt
    cipher.key, cipher.iv = "k" * 32, "i" * 16
    digest cipher.update(rows.inspect) + cipher.final
    p OpenSSL::PKey::RSA.new(1024).public_key.n.num_bits
    p Ripper.sexp(File.read(File.join(RbConfig::CONFIG["rubylibdir"], "erb.rb"))).flatten.size
    digest rows.inspect.scan(/user (\d+)/).flatten.join.gsub(/1(2)?/) { $1 || "one" }
    puts Time.parse("2020-02-29 12:00 UTC").iso8601, "ÀÉ".unicode_normalize(:nfd).bytes.size, "häß".encode("UTF-16").bytesize
  },

  "threads" => lambda {
    queue = Thread::Queue.new
    sums = Array.new(8) { |n| Thread.new { queue << n; churn(n, 4000) } }.map(&:value)
    puts sums, queue.size
    passed = Thread::SizedQueue.new(4)
    maker = Thread.new { 2000.times { |n| passed << "item #{n}" * 20 }; passed << nil }
    taken = []
    while (item = passed.pop) do taken << item end
    maker.join
    digest taken.join
    300.times.map { |n| Thread.new { Thread.current[:n] = "v" * n; Thread.exit if n % 7 == 0; n } }.each(&:join)
    thread = Thread.new { sleep }
    thread.kill.join
    puts thread.status.inspect
  },

  "fibers" => lambda {
    fibers = Array.new(3000) { |n| Fiber.new { |x| text = "f#{n}" * 30; loop { x = Fiber.yield(text.size + x) } } }
    puts fibers.sum { |fiber| fiber.resume(1) } + fibers.sum { |fiber| fiber.resume(2) }
    fibers = nil
    GC.start
    puts Enumerator.produce([0, 1]) { |a, b| [b, a + b] }.lazy.map(&:first).select(&:even?).first(30).last
    deep = ->(n) { n == 0 ? 0 : 1 + deep.(n - 1) }
    begin
      puts deep.(2000)
      endless = ->(n) { endless.(n + 1) }
      endless.(0)
    rescue SystemStackError
      puts "deep"
    end
  },

  "ractors" => lambda {
    $VERBOSE = nil
    ractors = Array.new(4) { |seed| Ractor.new(seed) { |n| words = Array.new(20_000) { |i| "#{n} #{i}" }; words.sum(&:size) } }
    p ractors.map(&:take)
    pipe = Ractor.new { loop { Ractor.yield(Ractor.receive.reverse) } }
    p Array.new(200) { |n| pipe.send("text #{n}" * 50, move: true); pipe.take }.sum(&:size)
  },

  "collections" => lambda {
    10.times { |n| churn(n, 1500); GC.start(full_mark: n.odd?, immediate_sweep: n.even?) }
    if GC.respond_to?(:compact)
      kept = Array.new(50_000) { |n| "string that is kept #{n}" }
      kept.select!.with_index { |_, n| n % 3 == 0 }
      3.times { GC.compact }
      digest kept.join
      GC.auto_compact = true
      puts churn(5, 8000)
      GC.auto_compact = false
      GC.verify_compaction_references(toward: :empty, expand_heap: true) rescue GC.verify_compaction_references(toward: :empty)
      digest kept.join
    end
    GC.stress = true
    text = 60.times.map { |n| "stress #{n}" }.join.tr("s", "z")
    GC.stress = false
    digest text
    GC.disable
    puts churn(6, 3000)
    GC.enable
    require "objspace"
    ObjectSpace.trace_object_allocations { churn(7, 500) }
    p ObjectSpace.memsize_of("x" * 100_000) >= 100_000, ObjectSpace.each_object(Class).count > 100, ObjectSpace.count_objects[:TOTAL] > 1000
    map = ObjectSpace::WeakMap.new
    2000.times { |n| map["key #{n}" * 3] = "value #{n}" * 3 }
    GC.start
    p map.size < 2000
    ObjectSpace.define_finalizer(Object.new, proc {})
    require "weakref"
    Array.new(1000) { WeakRef.new("w" * 50) }.each { |ref| ref.weakref_alive? }
    1000.times { |n| "symbol_#{n}_to_drop".to_sym }
    p GC.stat(:count) > 10, GC.stat(:malloc_increase_bytes) >= 0
  },

  # What a server does before it forks its workers, and Process.warmup since 3.3.
  "fork_server" => lambda {
    shared = Array.new(100_000) { |n| "shared #{n}" }
    3.times { GC.start }
    GC.compact if GC.respond_to?(:compact)
    Process.warmup if Process.respond_to?(:warmup)
    workers = Array.new(4) do |n|
      reader, writer = IO.pipe
      pid = fork do
        reader.close
        shared.map!.with_index { |text, at| at % 10 == n ? text.upcase : text }
        threads = Array.new(2) { |t| Thread.new { churn(n * 2 + t, 2000) } }
        inner = fork { exit!(churn(n, 500) ? 3 : 4) }
        Process.wait(inner)
        GC.compact if GC.respond_to?(:compact)
        writer.puts threads.map(&:value), $?.exitstatus, Digest::SHA256.hexdigest(shared.join)[0, 16]
        writer.close
      end
      writer.close
      [pid, reader]
    end
    shared.each { |text| text << "." }
    workers.each { |pid, reader| puts reader.read; Process.wait(pid); p $?.exitstatus }
    digest shared.join
    20.times { |n| thread = Thread.new { churn(n, 300) }; Process.wait(fork { churn(n, 100) }); thread.join }
    reader, writer = IO.pipe
    Process.wait(fork { Process.daemon(true, true); writer.puts churn(9, 300); exit! })
    writer.close
    puts reader.read
  },

  "processes" => lambda {
    ruby = File.join(RbConfig::CONFIG["bindir"], RbConfig::CONFIG["ruby_install_name"])
    puts IO.popen([ruby, "-e", "print STDIN.read.reverse"], "r+") { |io| io.write("text" * 1000); io.close_write; io.read }.size
    puts `#{ruby} -e 'puts 6 * 7'`, $?.success?
    require "open3"
    p Open3.capture3({ "A" => "b" }, ruby, "-e", "print ENV['A']; warn 'w'; exit 3").then { |out, err, status| [out, err, status.exitstatus] }
    p system(ruby, "-e", "exit 2"), $?.exitstatus
    Process.wait(spawn(ruby, "-e", "puts 'spawned'", rlimit_core: 0, umask: 077, pgroup: true))
    Process.wait(spawn({ "X" => nil }, "sh", "-c", "echo of a shell", unsetenv_others: false))
    Process.wait(fork { exec(ruby, "-e", "at_exit { puts 'exit of an exec' }; puts 'executed'") })
    pids = Array.new(6) { |n| Thread.new { Process.wait2(spawn("exit #{n}"))[1].exitstatus } }
    p pids.map(&:value)
    begin
      exec("/no/such/program")
    rescue Errno::ENOENT => error
      puts error.message
    end
    exec(ruby, "--disable-gems", "-e", "puts 'the last'")
  },

  "signals" => lambda {
    got = []
    %w[USR1 USR2 TERM].each { |name| trap(name) { got << name.dup * 100 } }
    100.times { %w[USR1 USR2 TERM].each { |name| Process.kill(name, $$); "x" * 5000 } }
    sleep 0.05 until got.map { |text| text[0, 4] }.uniq.size == 3
    p got.map { |text| text[0, 4] }.uniq.sort
    require "timeout"
    begin
      Timeout.timeout(0.05) { loop { "y" * 1000 } }
    rescue Timeout::Error
      puts "timeout"
    end
    child = fork { trap("TERM") { exit 7 }; puts "ready"; $stdout.flush; sleep }
    sleep 0.3
    Process.kill(:TERM, child)
    Process.wait(child)
    p $?.exitstatus
    child = fork { Process.kill(:KILL, $$) }
    Process.wait(child)
    p $?.termsig
    at_exit { puts "last" }
    at_exit { puts "first"; churn(1, 300) }
    Thread.new { loop { churn(2, 50) } }
    raise SystemExit.new(0)
  },

  "services" => lambda {
    require "webrick"; require "net/http"; require "drb"; require "logger"; require "stringio"; require "uri"
    server = WEBrick::HTTPServer.new(Port: 0, BindAddress: "127.0.0.1", Logger: WEBrick::Log.new(StringIO.new), AccessLog: [])
    server.mount_proc("/") { |request, response| response.body = request.path * 2000; response["X-Size"] = request.body.to_s.size.to_s }
    thread = Thread.new { server.start }
    port = server.listeners[0].addr[1]
    answers = Array.new(6) { |n| Thread.new { Array.new(10) { |m| Net::HTTP.post(URI("http://127.0.0.1:#{port}/#{n}/#{m}"), "b" * 5000 * n) } } }
    p answers.flat_map(&:value).sum { |answer| answer.body.size + answer["X-Size"].to_i }
    server.shutdown
    thread.join
    store = Class.new { def get(n) = Array.new(n) { |i| "item #{i}" } }.new
    drb = DRb.start_service("druby://127.0.0.1:0", store)
    p fork { remote = DRbObject.new_with_uri(drb.uri); exit!(remote.get(500).size == 500 ? 0 : 1) }.then { |pid| Process.wait2(pid)[1].exitstatus }
    drb.stop_service
  },

  "rdoc" => lambda {
    require "rdoc/rdoc"; require "tmpdir"; require "find"
    library = RbConfig::CONFIG["rubylibdir"]
    Dir.mktmpdir do |place|
      files = %w[optparse.rb abbrev.rb erb.rb set.rb].map { |name| File.join(library, name) }.select { |name| File.exist?(name) }
      $stderr = File.open(File::NULL, "w")
      RDoc::RDoc.new.document(["--quiet", "--ri", "--op", File.join(place, "out"), *files])
      made = Find.find(place).select { |path| File.file?(path) && path.end_with?(".ri") && !path.end_with?("cache.ri") }.sort
      puts made.size, Digest::SHA256.hexdigest(made.map { |path| File.binread(path) }.join)[0, 16]
    end
  },
}.freeze

if $0 == __FILE__
  $stdout.sync = true
  PROGRAMS.fetch(ARGV.fetch(0)).call
end
