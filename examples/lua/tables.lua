-- Tables that grow, shrink and are replaced, array and hash parts.
local state = 7
local function random(limit)
  state = (state * 1103515245 + 12345) % 2147483648
  return state // 65536 % limit + 1
end

local slots = {}
for step = 1, 200000 do
  local index = random(500)
  local action = random(10)
  if action == 1 then
    slots[index] = nil
  elseif action <= 4 or not slots[index] then
    slots[index] = { step, name = "slot" .. index % 50 }
  elseif action <= 8 then
    local slot = slots[index]
    slot[#slot + 1] = step * index
  else
    slots[index]["key" .. random(30)] = step
  end
end

local count, items, sum = 0, 0, 0
for index = 1, 500 do
  local slot = slots[index]
  if slot then
    count = count + 1
    for _, value in ipairs(slot) do items, sum = items + 1, (sum + value) % 1000000007 end
    for key = 1, 30 do sum = (sum + (slot["key" .. key] or 0)) % 1000000007 end
  end
end
print(count, items, sum)

-- A long array: its block is resized up to megabytes.
local array = {}
for number = 1, 300000 do array[number] = number * number % 1009 end
table.sort(array)
local hash = 0
for position = 1, #array, 1000 do hash = (hash * 31 + array[position]) % 1000000007 end
print(#array, array[1], array[#array], hash)
for _ = 1, 299000 do array[#array] = nil end
print(#array, select("#", table.unpack(array, 1, 100)))
