-- tests/bench/wrk/chat.lua - chat completions whose prompts share prefixes, as applications send them.
--
--   wrk -t2 -c64 -d30s -s tests/bench/wrk/chat.lua http://127.0.0.1:30000 -- [name=value ...]
--
--   model=synthetic    as GET /v1/models names it
--   prefixes=8         system prompts; each request has one of them ...
--   prefix_bytes=2000  ... this long, so that its blocks may be cached,
--   question_bytes=200 and a question of its own
--   max_tokens=16      of the answer
--   stream=false       true: server-sent events; wrk then times the whole stream
--   key=               sent as "Authorization: Bearer"
--
-- Bodies are made once, before the clock runs: 64 per prefix. The last lines count answers by code
-- and, when the workers report it, the share of prompt tokens that was cached.

local words = { "the", "river", "keeps", "its", "old", "bed", "until", "a", "flood", "comes", "and", "then",
    "every", "map", "is", "wrong", "for", "one", "more", "year", "so", "we", "draw", "it", "again" }
local option = { model = "synthetic", prefixes = 8, prefix_bytes = 2000, question_bytes = 200, max_tokens = 16,
    stream = "false", key = "" }
local bodies, at = {}, 0
local threads = {}

local function text(n)
    local out, len = {}, 0
    while len < n do
        local word = words[math.random(#words)] .. " "
        out[#out + 1] = word
        len = len + #word
    end
    return table.concat(out):sub(1, n)
end

function setup(thread)
    thread:set("number", #threads)
    threads[#threads + 1] = thread
end

function init(args)
    for _, arg in ipairs(args) do
        local name, value = arg:match("^([%a_]+)=(.*)$")
        if not name or option[name] == nil then error("not an option: " .. arg) end
        option[name] = value
    end
    for i = 1, tonumber(option.prefixes) do
        math.randomseed(i)
        local prefix = text(tonumber(option.prefix_bytes))
        math.randomseed(i * 1000 + number)
        for _ = 1, 64 do
            bodies[#bodies + 1] = string.format('{"model":"%s","messages":[{"role":"system","content":"%s"},' ..
                '{"role":"user","content":"%s"}],"max_tokens":%d,"stream":%s}', option.model, prefix,
                text(tonumber(option.question_bytes)), option.max_tokens, option.stream)
        end
    end
    for i = #bodies, 2, -1 do -- in no order
        local j = math.random(i)
        bodies[i], bodies[j] = bodies[j], bodies[i]
    end
    wrk.method, wrk.path = "POST", "/v1/chat/completions"
    wrk.headers["Content-Type"] = "application/json"
    if option.key ~= "" then wrk.headers["Authorization"] = "Bearer " .. option.key end
    answers, failed, prompt_tokens, cached_tokens = 0, 0, 0, 0
end

function request()
    at = at % #bodies + 1
    return wrk.format(nil, nil, nil, bodies[at])
end

function response(status, headers, body)
    answers = answers + 1
    if status ~= 200 then failed = failed + 1 end
    prompt_tokens = prompt_tokens + (tonumber(body:match('"prompt_tokens":(%d+)')) or 0)
    cached_tokens = cached_tokens + (tonumber(body:match('"cached_tokens":(%d+)')) or 0)
end

function done(summary, latency, requests)
    local total = { answers = 0, failed = 0, prompt_tokens = 0, cached_tokens = 0 }
    for _, thread in ipairs(threads) do
        for name in pairs(total) do total[name] = total[name] + thread:get(name) end
    end
    print(string.format("answers: %d, of these not 200: %d", total.answers, total.failed))
    if total.prompt_tokens > 0 then
        print(string.format("prompt tokens found in a cache: %.1f %% of %d", 100 * total.cached_tokens /
            total.prompt_tokens, total.prompt_tokens))
    end
end
