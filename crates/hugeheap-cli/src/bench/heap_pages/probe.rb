# What the process's allocator makes of requests for heap pages.
#
#     ruby probe.rb COUNT ALIGN SIZE...
#
# For each size: COUNT blocks by posix_memalign. Prints usable size and the median distance of neighbours, as JSON.

require "fiddle"
require "json"

count, align, *sizes = ARGV.map(&:to_i)
process = Fiddle::Handle::DEFAULT
word, size = Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T
memalign = Fiddle::Function.new(process["posix_memalign"], [word, size, size], Fiddle::TYPE_INT)
usable = Fiddle::Function.new(process["malloc_usable_size"], [word], size)

results = sizes.map do |bytes|
  slot = Fiddle::Pointer.malloc(Fiddle::SIZEOF_VOIDP, Fiddle::RUBY_FREE)
  blocks = Array.new(count) do
    abort "posix_memalign failed" unless memalign.call(slot, align, bytes).zero?
    slot.ptr.to_i
  end
  distances = blocks.sort.each_cons(2).map { |first, second| second - first }.sort
  { size: bytes, usable: usable.call(blocks[0]), distance: distances[distances.size / 2] }
end
puts JSON.generate(results)
