package page

import (
	"net/http"
	"time"
)

// Plan is a planner's answer of /api/v1/plan?job=: where a job's keys are, and what became of
// its plans.
type Plan struct {
	Job      string `json:"job"`
	Strategy string `json:"strategy"`
	// Mode is proposes (plans wait to be applied), acts (they are applied), or held (somebody
	// rolled a plan back).
	Mode          string        `json:"mode"`
	Trouble       string        `json:"trouble,omitempty"` // why nothing is planned
	DisplacedKeys uint64        `json:"displaced_keys"`
	Owned         []uint64      `json:"owned"` // number of displaced keys on each server, by rank
	Epochs        []PlanEpoch   `json:"epochs"`
	Handlers      []PlanHandler `json:"handlers"`
	Proxies       int           `json:"proxies"` // connected to the planner for plans
}

// PlanEpoch is one plan. Epochs are ordered newest first.
type PlanEpoch struct {
	Epoch       uint64        `json:"epoch"`
	State       string        `json:"state"` // proposed, moving, done, rolled back, superseded
	Reason      string        `json:"reason"`
	Made        time.Time     `json:"made"`
	Keys        uint64        `json:"keys"`
	MovedKeys   uint64        `json:"moved_keys"`
	MovedBytes  uint64        `json:"moved_bytes"`
	PendingKeys uint64        `json:"pending_keys"`
	Hosts       []PlanHost    `json:"hosts"`
	Refused     []PlanRefusal `json:"refused"`
	// HeldP50 and HeldP99 are for how many seconds a key's requests were held while it moved.
	HeldP50 float64 `json:"held_p50"`
	HeldP99 float64 `json:"held_p99"`
}

// PlanHost is what crosses a host's link in a step, in bytes of keys and values.
type PlanHost struct {
	Host      string  `json:"host"`
	Before    float64 `json:"before"`
	Predicted float64 `json:"predicted"`
	Actual    float64 `json:"actual"`              // 0 until measured
	LinkMbit  float64 `json:"link_mbit,omitempty"` // speed that the plan assumes; absent: all links are assumed equally fast
}

// PlanRefusal is a number of keys that were not moved, for one reason.
type PlanRefusal struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Keys    uint64 `json:"keys"`
	Example Key    `json:"example"`
	// ExampleName is the name of that key, if it has one (--names).
	ExampleName string `json:"example_name,omitempty"`
}

// PlanHandler describes how a job's servers apply pushes, as far as known.
type PlanHandler struct {
	Server  int    `json:"server"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// planOf answers /api/v1/plan.
func planOf(plan func(job string) (Plan, error)) http.HandlerFunc {
	return answer(func(r *http.Request) (Plan, error) { return plan(r.URL.Query().Get("job")) })
}
