-- Closures, upvalues, coroutines, finalizers and weak tables.
local function counter(start)
  local value = start
  return function(step) value = value + step return value end
end

local counters, sum = {}, 0
for number = 1, 5000 do counters[number] = counter(number) end
for round = 1, 20 do
  for number, count in ipairs(counters) do sum = (sum + count(round)) % 1000000007 end
end
print("counters", sum)

local function producer(limit)
  return coroutine.wrap(function()
    for number = 2, limit do coroutine.yield(number) end
  end)
end
local function filter(prime, source)
  return coroutine.wrap(function()
    for number in source do
      if number % prime ~= 0 then coroutine.yield(number) end
    end
  end)
end
local primes, source = {}, producer(300)
while true do
  local prime = source()
  if not prime then break end
  primes[#primes + 1] = prime
  source = filter(prime, source)
end
print("primes", #primes, primes[#primes])

-- Coroutines that are never finished.
local alive = {}
for number = 1, 3000 do
  local thread = coroutine.create(function(value) coroutine.yield(value * 2) end)
  local _, value = coroutine.resume(thread, number)
  alive[number % 100] = thread
  sum = (sum + value) % 1000000007
end
print("coroutines", sum)

local finalized, weak = 0, setmetatable({}, { __mode = "v" })
for number = 1, 10000 do
  weak[number] = setmetatable({ number }, { __gc = function() finalized = finalized + 1 end })
end
collectgarbage()
collectgarbage()
print("finalized", finalized, next(weak))

local function deep(level)
  if level == 0 then error({ code = 7 }) end
  return 1 + deep(level - 1)
end
local ok, failure = pcall(deep, 150000)
print("stack", ok, failure.code)
