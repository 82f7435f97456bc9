package prerun

import (
	"time"

	"golang.org/x/sys/unix"
)

// usage returns the processor time of this process and its largest memory so far, in bytes. Both
// are 0 if the system does not report them; a partition is as good without figures.
func usage() (cpu time.Duration, peak int64) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Maxrss << 10
}
