package proxy

import (
	"runtime"
	"runtime/debug"
	"time"
)

// releaseAfter is how long the proxy has no connection when it gives memory back
// to the system. The collector would take up to four minutes: it runs every two
// while nothing is allocated, and buffers in pools outlive one collection.
const releaseAfter = 10 * time.Second

// A releaser gives memory back once after connections were carried. It is not for
// concurrent use.
type releaser struct {
	carried  uint64    // connections, when memory was given back last
	idle     time.Time // since when there is none; zero: there are some
	giveBack func()    // [giveMemoryBack], but in tests
}

// releaseIfIdle takes the number of open connections, and of all so far.
func (r *releaser) releaseIfIdle(now time.Time, active int, carried uint64) {
	switch {
	case active > 0 || carried == r.carried:
		r.idle = time.Time{}
	case r.idle.IsZero():
		r.idle = now
	case now.Sub(r.idle) >= releaseAfter:
		r.carried, r.idle = carried, time.Time{}
		r.giveBack()
	}
}

// giveMemoryBack empties pools, which takes two collections.
func giveMemoryBack() {
	runtime.GC()
	debug.FreeOSMemory()
}
