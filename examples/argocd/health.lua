-- Health of an LLMDeployment for Argo CD, from the conditions that its operator writes.
local health = { status = "Progressing", message = "no operator has looked at it yet" }

local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.observedGeneration ~= obj.metadata.generation then
  health.message = "the operator has not seen the newest spec yet"
  return health
end

local found = {}
for _, condition in ipairs(status.conditions) do
  found[condition.type] = condition
end
local function is(kind, value)
  return found[kind] ~= nil and found[kind].status == value
end
local function told(kind)
  local condition = found[kind]
  if condition.message == nil or condition.message == "" then
    return condition.reason
  end
  return condition.reason .. ": " .. condition.message
end

-- Wrong spec, or no progress for longer than rollout.progressDeadline.
if is("ConfigValid", "False") then
  return { status = "Degraded", message = told("ConfigValid") }
end
if is("Stalled", "True") then
  return { status = "Degraded", message = told("Stalled") }
end
if obj.spec.paused then
  return { status = "Suspended", message = "spec.paused is true" }
end
if is("Ready", "True") then
  return { status = "Healthy", message = told("Ready") }
end
-- Something is wrong and nobody serves. Room may still come: an autoscaler brings nodes.
local waits_for_room = { InsufficientGPU = true, Unschedulable = true }
if is("Degraded", "True") and is("Available", "False") and not waits_for_room[found.Degraded.reason] then
  return { status = "Degraded", message = told("Degraded") }
end
if found["Ready"] ~= nil then
  health.message = told("Ready")
end
return health
