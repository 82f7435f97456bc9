//go:build !linux

package threshold

import "github.com/psidecar/psidecar/proxy/codec/vector"

func inLargePages[R vector.Float](n int) []R { return make([]R, n) }
