package plan

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"
)

// A Run names one run of a job, from its node table to its end. The proxy on the
// scheduler's host issues it when the node table leaves the scheduler, so that a
// job with the same addresses twice is two runs. It sorts by when runs began:
//
//	milliseconds since 1970 (12 hexadecimal digits), random (16), "-", digest of the node table (16)
//
// The empty Run stands for a run that nobody has named: its keys do not move.
type Run string

const runLength = 12 + 16 + 1 + 16

// NewRun returns a name for a run that begins now with a node table of that digest. It sorts after
// the run before it even if the clock was set back, since the newest run is the one with the
// greatest name. It uses random bits, so that two proxies that name a run at once disagree visibly.
func NewRun(after Run, now time.Time, digest uint64) Run {
	millis := uint64(now.UnixMilli())
	if last, err := strconv.ParseUint(string(after[:min(len(after), 12)]), 16, 64); err == nil {
		millis = max(millis, last+1)
	}
	var random [8]byte
	rand.Read(random[:]) // never fails
	return Run(fmt.Sprintf("%012x%016x-%016x", millis&(1<<48-1), binary.BigEndian.Uint64(random[:]), digest))
}

// Valid reports whether the run has the form that [NewRun] gives.
func (r Run) Valid() bool {
	if len(r) != runLength {
		return false
	}
	for i, c := range []byte(r) {
		switch {
		case i == 28:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return true
}

// Table returns the digest of the run's node table. known is false for a run that no proxy has
// named. An agent that sees the node table finds the run by it.
func (r Run) Table() (digest uint64, known bool) {
	if !r.Valid() {
		return 0, false
	}
	digest, err := strconv.ParseUint(string(r[runLength-16:]), 16, 64)
	return digest, err == nil
}

// Began returns when the run began, by the clock of the scheduler's host.
func (r Run) Began() time.Time {
	if !r.Valid() {
		return time.Time{}
	}
	millis, err := strconv.ParseInt(string(r[:12]), 16, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(millis)
}

// Short returns the first half of the random digits, which tells runs apart in logs and tables.
func (r Run) Short() string {
	if !r.Valid() {
		return string(r)
	}
	return string(r[12:20])
}
