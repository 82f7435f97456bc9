//go:build !linux

package prerun

import "time"

func usage() (cpu time.Duration, peak int64) { return 0, 0 }
