package agent

import (
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/bpf"
)

// timer finds out what part of the reading thread's work goes into keys. It
// looks at the clock for one in timerEach records, picked at random, since
// records come in a rhythm.
type timer struct {
	keys, all atomic.Int64 // nanoseconds, of the records that were timed
	random    uint32       // the reader's alone
}

const timerEach = 16

// handle has a record handled.
func (t *timer) handle(r *bpf.Record, by func(*bpf.Record)) {
	t.random = t.random*1664525 + 1013904223
	if t.random>>16%timerEach != 0 {
		by(r)
		return
	}
	ofKeys := isOfKeys(r) // before r is used up
	start := time.Now()
	by(r)
	took := time.Since(start).Nanoseconds()
	t.all.Add(took)
	if ofKeys {
		t.keys.Add(took)
	}
}

// isOfKeys reports whether the record would not be there, or would mean less
// work, had its message not been sampled: keys are counted at its end.
func isOfKeys(r *bpf.Record) bool {
	switch r.Kind {
	case bpf.KindKeys, bpf.KindKeyRun, bpf.KindLens:
		return true
	case bpf.KindEnd:
		return r.Has(bpf.Sampled)
	}
	return false
}
