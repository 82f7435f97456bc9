package page

import "net/http"

// Codecs answers /api/v1/codecs of a planner: the rules for the values of a
// job's pushes and pulls, and what codecs would do, as tried on live traffic.
type Codecs struct {
	Job   string `json:"job"`
	Rules string `json:"rules,omitempty"` // JSON, as proxies have them; absent: their own flags hold
	// Hosts are those whose proxies follow the planner.
	Hosts []CodecHost `json:"hosts"`
	// Tried: codecs have been tried. Advice is what came of it, absent where
	// nothing of the job passed meanwhile, or no host has reported yet.
	Tried       bool         `json:"tried"`
	LeftSeconds float64      `json:"left_seconds"` // of a trial under way
	Advice      *CodecAdvice `json:"advice,omitempty"`
}

// CodecHost is a proxy that follows the planner.
type CodecHost struct {
	Host     string `json:"host"`
	Current  bool   `json:"current"`           // it has taken the newest rules up
	Refused  string `json:"refused,omitempty"` // why not
	Reported bool   `json:"reported"`          // it has finished the newest trial
	Untried  string `json:"untried,omitempty"` // why it could not try
}

// CodecAdvice is what codecs would do.
type CodecAdvice struct {
	Seconds   float64    `json:"seconds"` // for how long was tried
	Hosts     int        `json:"hosts"`   // where
	Pushes    uint64     `json:"pushes"`
	PushBytes uint64     `json:"push_bytes"` // of messages as the job has them
	PullBytes uint64     `json:"pull_bytes"`
	Missed    uint64     `json:"missed"` // messages that were left out
	Codecs    []CodecRow `json:"codecs"`
}

// CodecRow is what one codec would do.
type CodecRow struct {
	Codec     string  `json:"codec"`
	PushBytes uint64  `json:"push_bytes"` // that would be left
	PullBytes uint64  `json:"pull_bytes"`
	Saved     float64 `json:"saved"` // share of all bytes; negative: it would add some
	// Waits is the norm of the gradient that would wait at the end, in norms of
	// what one step pushes.
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
