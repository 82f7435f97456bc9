package page

import "time"

// Agent is the answer of /api/v1/agent: the agent itself, its cost, and what it missed. In a
// planner's answer, costs, memory and counters are sums over all hosts.
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
	Cgroups       []string  `json:"cgroups"`  // to which the programs are attached
	Planner       *Planner  `json:"planner,omitempty"`
	Proxy         bool      `json:"proxy,omitempty"` // the process is the host's proxy too: see /api/v1/connections
	Hosts         []Host    `json:"hosts,omitzero"`  // from the planner: the hosts that report
	Machine       *Machine  `json:"machine,omitempty"`
	// RecordingBytes is the size limit of a recording that is opened here (POST
	// /api/v1/recordings); 0: none can be.
	RecordingBytes int64     `json:"recording_bytes,omitempty"`
	Adoption       *Adoption `json:"adoption,omitempty"` // nil: connections are not intercepted
}

// FastLink is the key in Adoption.Past of connections that need no proxy.
const FastLink = "fast-link"

// Adoption is the state of adopting connections that bypass the host's proxy.
type Adoption struct {
	Adopted uint64            `json:"adopted"` // connections that were ended in order, to be made again
	Left    uint64            `json:"left"`    // connections through the proxy that were ended in order, to be made again without it
	Past    map[string]int    `json:"past"`    // connections that bypass the proxy now, by why they are not adopted
	Refused map[string]uint64 `json:"refused"` // failed attempts, by reason
}

// A Machine describes a host as far as its agent knows.
type Machine struct {
	LinkMbit   uint32 `json:"link_mbit"`   // speed of its link in Mbit/s; 0: unknown
	LinkSource string `json:"link_source"` // where the speed comes from, or why it is unknown
	Cores      int    `json:"cores"`
}

// A Host is an agent's report about itself to the planner.
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
	Lost          []Counter `json:"lost"` // nonzero counters of what it missed
	Machine       *Machine  `json:"machine,omitempty"`
}

// A Program is one of the capture programs in the kernel.
type Program struct {
	Name        string  `json:"name"`
	Runs        uint64  `json:"runs"`
	Seconds     float64 `json:"seconds"`
	NanosPerRun float64 `json:"nanoseconds_per_run"`
}

// Sampling says how requests are sampled: as in the job that is sampled most sparsely.
type Sampling struct {
	OneIn         uint32  `json:"one_in"` // one in so many windows of timestamps
	Window        uint32  `json:"window"` // timestamps in a window
	Adaptive      bool    `json:"adaptive"`
	BudgetPercent float64 `json:"budget_percent"` // of one core, averaged over a minute, for all watching
	CostPercent   float64 `json:"cost_percent"`   // of one core, that it costs now, in the kernel and in the process
	// OverBudget says that it costs more than the budget although as little is inspected as can be.
	OverBudget bool `json:"over_budget"`
	// RestOf says for which part of the time busy connections are watched: one in so many.
	RestOf uint32 `json:"rest_of,omitempty"`
}

// Lost is the [Counter.Class] of what should have been seen and was not.
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
	Skipped   uint64    `json:"skipped"`         // superseded by a newer one before it was sent
	Error     string    `json:"error,omitempty"` // why it is not connected
}
