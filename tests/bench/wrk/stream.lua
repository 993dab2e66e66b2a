-- tests/bench/wrk/stream.lua - the same as chat.lua, as event streams of 64 tokens.
--
--   wrk -t2 -c64 -d30s -s tests/bench/wrk/stream.lua http://127.0.0.1:30000 -- [name=value ...]
--
-- wrk reads a stream to its end and times all of it; for the time to the first token use
-- incipit-bench. Options as in chat.lua.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
dofile(here .. "chat.lua")

local init_chat = init
function init(args)
    local all = { "stream=true", "max_tokens=64" }
    for _, arg in ipairs(args) do all[#all + 1] = arg end
    init_chat(all)
end
