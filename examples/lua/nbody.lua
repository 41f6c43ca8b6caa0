-- Numbers: bodies that attract each other, each step in new tables.
local bodies = {
  { x = 0, y = 0, z = 0, vx = 0, vy = 0, vz = 0, mass = 39.5 },
  { x = 4.8, y = -1.2, z = -0.1, vx = 0.6, vy = 2.8, vz = -0.02, mass = 0.04 },
  { x = 8.3, y = 4.1, z = -0.4, vx = -1.0, vy = 1.8, vz = 0.008, mass = 0.01 },
  { x = 12.9, y = -15.1, z = -0.2, vx = 1.1, vy = 0.9, vz = -0.01, mass = 0.0017 },
  { x = 15.4, y = -25.9, z = 0.2, vx = 1.0, vy = 0.6, vz = -0.03, mass = 0.002 },
}

local function step(old, dt)
  local new = {}
  for number, body in ipairs(old) do
    local vx, vy, vz = body.vx, body.vy, body.vz
    for other, attractor in ipairs(old) do
      if other ~= number then
        local dx, dy, dz = attractor.x - body.x, attractor.y - body.y, attractor.z - body.z
        local square = dx * dx + dy * dy + dz * dz
        local pull = attractor.mass * dt / (square * square ^ 0.5)
        vx, vy, vz = vx + dx * pull, vy + dy * pull, vz + dz * pull
      end
    end
    new[number] = {
      x = body.x + vx * dt, y = body.y + vy * dt, z = body.z + vz * dt,
      vx = vx, vy = vy, vz = vz, mass = body.mass,
    }
  end
  return new
end

for round = 1, 20000 do
  bodies = step(bodies, 0.001)
  if round % 5000 == 0 then
    for number, body in ipairs(bodies) do
      print(round, number, ("%.9f %.9f %.9f"):format(body.x, body.y, body.z))
    end
  end
end
