-- Strings of all lengths: building, cutting, replacing, as keys.
local pieces, words = {}, {}
for number = 1, 20000 do
  pieces[#pieces + 1] = string.format("%05d:%s", number, ("ab"):rep(number % 40))
end
local text = table.concat(pieces, ",")
print(#text)

for word in text:gmatch("[^,]+") do
  local key = word:sub(7, 20)
  words[key] = (words[key] or 0) + 1
end
local keys = {}
for key in pairs(words) do keys[#keys + 1] = key end
table.sort(keys)
for _, key in ipairs(keys) do print(("%q %d"):format(key, words[key])) end

local upper, changes = text:gsub("a(b+)", function(rest) return rest:upper() .. "-" end)
print(#upper, changes, upper:sub(1000, 1040))

-- A string that grows: every step a longer block.
local grown, sum = "", 0
for number = 1, 3000 do
  grown = grown .. string.char(33 + number % 90)
  sum = (sum * 31 + #grown + grown:byte(-1)) % 1000003
end
print(#grown, sum)
