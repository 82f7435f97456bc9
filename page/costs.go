package page

import "time"

// Agent answers /api/v1/agent: the agent itself, its cost and what it missed.
// The planner's costs, memory and counters are the sums of all hosts'.
type Agent struct {
	Version       string    `json:"version"`
	Host          string    `json:"host"`
	Started       time.Time `json:"started"`
	CPUSeconds    float64   `json:"cpu_seconds"`  // of the agent
	CPUPercent    float64   `json:"cpu_percent"`  // of one core, recently
	MemoryBytes   uint64    `json:"memory_bytes"` // resident
	Programs      []Program `json:"programs"`
	KernelPercent float64   `json:"kernel_percent"` // of one core, in all programs, recently
	Sampling      Sampling  `json:"sampling"`
	Counters      []Counter `json:"counters"`
	Sketches      []Sketch  `json:"sketches"` // one a job
	Cgroups       []string  `json:"cgroups"`  // to which programs are attached
	Planner       *Planner  `json:"planner,omitempty"`
	Proxy         bool      `json:"proxy,omitempty"` // it is one too: see /api/v1/connections
	Hosts         []Host    `json:"hosts,omitzero"`  // the planner's: those that report
	Machine       *Machine  `json:"machine,omitempty"`
	// RecordingBytes is how long a recording may be that is opened here (POST
	// /api/v1/recordings); 0: none is.
	RecordingBytes int64     `json:"recording_bytes,omitempty"`
	Adoption       *Adoption `json:"adoption,omitempty"` // nil: connections are not adopted
}

// Adoption is what came of having connections that go past the host's proxy made again.
type Adoption struct {
	Adopted uint64            `json:"adopted"` // connections that were ended in order for it
	Past    map[string]int    `json:"past"`    // connections that go past now, by why they are not adopted
	Refused map[string]uint64 `json:"refused"` // times that one was looked at closely and stayed, by why
}

// A Machine is what a host is, as far as its agent knows.
type Machine struct {
	LinkMbit   uint32 `json:"link_mbit"`   // speed of its link, Mbit/s; 0 unknown
	LinkSource string `json:"link_source"` // where that is known from, or why it is not
	Cores      int    `json:"cores"`
}

// A Host is an agent's report to the planner on itself.
type Host struct {
	Host          string    `json:"host"`
	Version       string    `json:"version"`
	Started       time.Time `json:"started"`
	Reported      time.Time `json:"reported"` // when its newest report was made
	Jobs          int       `json:"jobs"`
	CPUPercent    float64   `json:"cpu_percent"`    // of one core, recently
	KernelPercent float64   `json:"kernel_percent"` // of one core, in its programs, recently
	MemoryBytes   uint64    `json:"memory_bytes"`
	SampledOneIn  uint32    `json:"sampled_one_in"`
	Lost          []Counter `json:"lost"` // what it missed, where it missed something
	Machine       *Machine  `json:"machine,omitempty"`
}

// A Program is one of the kernel's programs that watch.
type Program struct {
	Name        string  `json:"name"`
	Runs        uint64  `json:"runs"`
	Seconds     float64 `json:"seconds"`
	NanosPerRun float64 `json:"nanoseconds_per_run"`
}

// Sampling says which requests' keys are looked at: of the job of which the
// fewest are, where there are several.
type Sampling struct {
	OneIn         uint32  `json:"one_in"` // windows of timestamps
	Window        uint32  `json:"window"` // timestamps
	Adaptive      bool    `json:"adaptive"`
	BudgetPercent float64 `json:"budget_percent"` // of one core, over a minute, for looking at keys
	CostPercent   float64 `json:"cost_percent"`   // of one core, that looking at keys takes now
	// OverBudget: that is more than the budget, since the keys of a step every few
	// seconds are looked at whatever it takes.
	OverBudget bool `json:"over_budget"`
}

// Lost is the [Counter.Class] of what was to be seen and was not.
const Lost = "lost"

// A Counter counts something that was seen, ignored or lost.
type Counter struct {
	Reason string `json:"reason"`
	Class  string `json:"class"` // seen, ignored or [Lost]
	Help   string `json:"help"`
	Events uint64 `json:"events"`
	Bytes  uint64 `json:"bytes"`
}

// Planner is the state of the link to the planner.
type Planner struct {
	Address   string    `json:"address"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	Reports   uint64    `json:"reports"`         // accepted by the planner
	Skipped   uint64    `json:"skipped"`         // given up because a newer one was there
	Error     string    `json:"error,omitempty"` // why it is not connected
}
