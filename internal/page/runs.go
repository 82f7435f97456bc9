package page

import "time"

// Runs is the answer of /api/v1/runs: past and present runs of jobs, for comparison.
type Runs struct {
	Jobs []NamedRuns `json:"jobs"`
}

// NamedRuns are the runs of one name, newest first.
type NamedRuns struct {
	Name string `json:"name"`
	Runs []Run  `json:"runs"`
}

// A Run is one execution of a job. Its figures are means over the whole run, as far as agents
// have reported it.
type Run struct {
	ID             string    `json:"run,omitempty"` // as psidecar plan shows it; empty: unknown
	Job            string    `json:"job"`           // its scheduler's host:port
	Began          time.Time `json:"began"`
	Last           time.Time `json:"last"`    // of its last message
	Running        bool      `json:"running"` // its processes exist
	Servers        int       `json:"servers"`
	Workers        int       `json:"workers"`
	Steps          float64   `json:"steps"`            // of the mean worker
	StepsPerSecond float64   `json:"steps_per_second"` // from Began to Last
	Bytes          uint64    `json:"bytes"`            // of all messages
	BytesPerStep   float64   `json:"bytes_per_step"`   // Bytes divided by Steps
	LeftHostBytes  uint64    `json:"left_host_bytes"`
}
