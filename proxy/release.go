package proxy

import (
	"runtime"
	"runtime/debug"
	"time"
)

// releaseAfter is how long the proxy must be without a connection before it gives memory back
// to the system. The collector by itself would take up to four minutes: it runs every two
// while nothing is allocated, and buffers in pools outlive one collection.
const releaseAfter = 10 * time.Second

// releaser gives memory back once after connections were carried. It is for one goroutine.
type releaser struct {
	carried  uint64    // connections so far, when memory was last given back
	idle     time.Time // since when there are none; zero: there are some
	giveBack func()    // giveMemoryBack; tests replace it
}

// releaseIfIdle is called periodically with the number of open connections, and of all so
// far.
func (r *releaser) releaseIfIdle(now time.Time, active int, carried uint64) {
	switch {
	// Without new connections since the last time there is nothing to give back.
	case active > 0 || carried == r.carried:
		r.idle = time.Time{}
	case r.idle.IsZero():
		r.idle = now
	case now.Sub(r.idle) >= releaseAfter:
		r.carried, r.idle = carried, time.Time{}
		r.giveBack()
	}
}

// giveMemoryBack empties the pools, which takes two collections: FreeOSMemory makes the
// second.
func giveMemoryBack() {
	runtime.GC()
	debug.FreeOSMemory()
}
