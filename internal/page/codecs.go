package page

import "net/http"

// Codecs is the planner's answer of /api/v1/codecs: the rules for the values of a job's pushes
// and pulls, and what codecs would save, as measured in trials on live traffic.
type Codecs struct {
	Job   string `json:"job"`
	Rules string `json:"rules,omitempty"` // JSON, as proxies take them; absent: proxies' own flags apply
	// Hosts are those whose proxies follow the planner.
	Hosts []CodecHost `json:"hosts"`
	// Tried says that a trial has been made. Advice is its result, absent if nothing of the job
	// passed during the trial or no host has reported yet.
	Tried       bool         `json:"tried"`
	LeftSeconds float64      `json:"left_seconds"` // remaining time of a trial in progress
	Advice      *CodecAdvice `json:"advice,omitempty"`
}

// CodecHost is a proxy that follows the planner.
type CodecHost struct {
	Host     string `json:"host"`
	Current  bool   `json:"current"`           // it has applied the newest rules
	Refused  string `json:"refused,omitempty"` // why it has not
	Reported bool   `json:"reported"`          // it has finished the newest trial
	Untried  string `json:"untried,omitempty"` // why it could not take part
}

// CodecAdvice is the result of a trial.
type CodecAdvice struct {
	Seconds   float64 `json:"seconds"` // duration of the trial
	Hosts     int     `json:"hosts"`   // number of hosts that took part
	Pushes    uint64  `json:"pushes"`
	PushBytes uint64  `json:"push_bytes"` // of messages as the job sends them
	PullBytes uint64  `json:"pull_bytes"`
	Missed    uint64  `json:"missed"` // messages that the trial left out
	// CharValues is what values of type CHAR and OTHER were taken for, as their commands say.
	// UntypedBytes are those of values whose kind is not known, which no codec can change.
	CharValues   string     `json:"char_values,omitempty"`
	UntypedBytes uint64     `json:"untyped_bytes,omitempty"`
	Codecs       []CodecRow `json:"codecs"`
	Suggested    string     `json:"suggested,omitempty"` // one of Codecs; empty: none saves enough
}

// CodecRow is what one codec would save.
type CodecRow struct {
	Codec     string  `json:"codec"`
	PushBytes uint64  `json:"push_bytes"` // remaining
	PullBytes uint64  `json:"pull_bytes"`
	Saved     float64 `json:"saved"` // fraction of all bytes; negative if it would add some
	// Waits is the norm of the gradient that would be held back at the end, relative to the
	// norm of what one step pushes.
	Waits float64 `json:"waits"`
}

// codecsOf answers with the Codecs of a job.
func codecsOf(codecs func(job string) (Codecs, error)) http.HandlerFunc {
	return answer(func(r *http.Request) (Codecs, error) {
		c, err := codecs(r.URL.Query().Get("job"))
		if c.Hosts == nil {
			c.Hosts = []CodecHost{}
		}
		return c, err
	})
}
