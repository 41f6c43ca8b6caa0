-- Many small tables that live and die together: complete binary trees.
local depth = tonumber(arg and arg[1]) or 13

local function tree(levels)
  if levels == 0 then return {} end
  return { tree(levels - 1), tree(levels - 1) }
end

local function nodes(node)
  if not node[1] then return 1 end
  return 1 + nodes(node[1]) + nodes(node[2])
end

local kept = tree(depth)
for levels = 4, depth, 3 do
  local count = 1 << (depth - levels + 4)
  local sum = 0
  for _ = 1, count do sum = sum + nodes(tree(levels)) end
  print(count .. " trees of depth " .. levels .. ": " .. sum .. " nodes")
end
print("kept: " .. nodes(kept) .. " nodes")
