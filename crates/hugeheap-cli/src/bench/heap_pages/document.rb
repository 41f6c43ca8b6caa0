# The program of the measurement: RDoc over a part of Ruby's own library, or all of it.
#
#     ruby document.rb PART       PART: all, or the directories and files to read, separated by commas
#
# Prints what the report says about it, as JSON.

require "json"
require "rbconfig"
require "rdoc"
require "tmpdir"

library = RbConfig::CONFIG["rubylibdir"]
names = ARGV[0] == "all" ? [library] : ARGV[0].split(",").map { |name| File.join(library, name) }
names = names.select { |name| File.exist?(name) }
abort "nothing of Ruby's library is below #{library}" if names.empty?

Dir.mktmpdir do |directory|
  # Files it cannot parse are named on standard error, which is nobody's concern here.
  RDoc::RDoc.new.document(["--all", "--ri", "--quiet", "--root", library, "--op", File.join(directory, "ri"), *names])
end

thp = begin
  File.read("/proc/self/status")[/^THP_enabled:\s*(\d)/, 1]
rescue SystemCallError
  nil
end
puts JSON.generate(version: RUBY_VERSION, heap_page: GC::INTERNAL_CONSTANTS[:HEAP_PAGE_SIZE], rdoc: RDoc::VERSION,
                   thp_enabled: thp && thp == "1", pages: GC.stat(:heap_allocated_pages))
