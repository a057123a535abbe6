-- next.lua WAY PATH N SIZE: reads PATH N times and prints what it got.
local way, path, n, size = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4])

local function opened() return assert(io.open(path, "rb")) end

-- Returns a function that opens the file and reads a batch.
local function once(what)
  return function()
    local f <close> = opened()
    return assert(f:read(what))
  end
end

-- Each way returns a function that returns the next batch.
local ways = {
  all = function() return once("a") end,
  sized = function() return once(size) end,
  lines = function() return function() return io.lines(path, size)() end end,
  seek = function()
    local f = opened()
    return function()
      assert(f:seek("set"))
      return assert(f:read(size))
    end
  end,
  unbuffered = function()
    local f = opened()
    f:setvbuf("no")
    return function()
      assert(f:seek("set"))
      return assert(f:read(size))
    end
  end,
}
local next_batch = ways[way]()
for _ = 1, n do
  io.stdout:write(next_batch())
end
