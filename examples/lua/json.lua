-- A parser and printer: strings, tables, recursion, errors.
local escapes = { ['"'] = '"', ["\\"] = "\\", n = "\n", t = "\t" }

local function parse(text)
  local at = 1
  local value
  local function skip() at = text:find("%S", at) or #text + 1 end
  local function expect(mark)
    skip()
    if text:sub(at, at) ~= mark then error(("%s expected at %d"):format(mark, at), 0) end
    at = at + 1
  end
  local function peek() skip() return text:sub(at, at) end
  local function word()
    expect('"')
    local parts = {}
    while true do
      local stop = text:find('["\\]', at) or error("a string without an end", 0)
      parts[#parts + 1] = text:sub(at, stop - 1)
      at = stop + 1
      if text:sub(stop, stop) == '"' then return table.concat(parts) end
      parts[#parts + 1] = escapes[text:sub(at, at)] or error("unknown escape at " .. at, 0)
      at = at + 1
    end
  end
  local function list(closing, item)
    local items = {}
    at = at + 1
    if peek() ~= closing then
      repeat
        item(items)
        local more = peek() == ","
        if more then at = at + 1 end
      until not more
    end
    expect(closing)
    return items
  end
  function value()
    local mark = peek()
    if mark == "{" then
      return list("}", function(items)
        skip()
        local key = word()
        expect(":")
        items[key] = value()
      end)
    elseif mark == "[" then
      return list("]", function(items) items[#items + 1] = value() end)
    elseif mark == '"' then
      return word()
    end
    local number = text:match("^-?%d+%.?%d*", at)
    if not number then error("no value at " .. at, 0) end
    at = at + #number
    return tonumber(number)
  end
  local result = value()
  skip()
  if at <= #text then error("more text at " .. at, 0) end
  return result
end

local function write(value)
  if type(value) == "number" then return tostring(value) end
  if type(value) == "string" then
    return '"' .. value:gsub('["\\]', "\\%0"):gsub("\n", "\\n"):gsub("\t", "\\t") .. '"'
  end
  local parts = {}
  if #value > 0 or next(value) == nil then
    for _, item in ipairs(value) do parts[#parts + 1] = write(item) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do parts[#parts + 1] = write(key) .. ":" .. write(value[key]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

local items = {}
for number = 1, 2000 do
  items[number] = ('{"id": %d, "name": "item \\"%d\\"", "tags": ["a%d", "b\\n", []], "size": {"w": %d.5, "h": -%d}}')
    :format(number, number, number % 7, number, number % 100)
end
local text = "[" .. table.concat(items, ",\n  ") .. "]"
local first = write(parse(text))
for _ = 1, 5 do
  local again = write(parse(first))
  assert(again == first)
end
print(#text, #first)
print(first:sub(1, 200))
print(first:sub(-200))
for _, bad in ipairs({ "", "[1,", '{"a" 1}', '"no end', '["\\q"]', "[1] 2" }) do
  print(pcall(parse, bad))
end
