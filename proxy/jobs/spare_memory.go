package jobs

import (
	"sync"

	"github.com/psidecar/psidecar/proxy/spare"
)

// spareKeeping bounds what the clients of spare servers keep of values, of all jobs: of the memory of the whole proxy
// at most limit bytes.
type spareKeeping struct {
	limit int64

	mu    sync.Mutex // guards the rest
	bytes int64
	whole spare.Reserver // nil: there is no other bound
}

// TryReserve implements [spare.Reserver].
func (k *spareKeeping) TryReserve(n int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bytes+int64(n) > k.limit || k.whole != nil && !k.whole.TryReserve(n) {
		return false
	}
	k.bytes += int64(n)
	return true
}

// Unreserve implements [spare.Reserver].
func (k *spareKeeping) Unreserve(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bytes -= int64(n)
	if k.whole != nil {
		k.whole.Unreserve(n)
	}
}

// BoundKept has the values that are kept count towards the memory of the whole proxy. Call it before there are jobs.
func (j *Jobs) BoundKept(whole spare.Reserver) {
	j.spareKept.mu.Lock()
	defer j.spareKept.mu.Unlock()
	j.spareKept.whole = whole
}
