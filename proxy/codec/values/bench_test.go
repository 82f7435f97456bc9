package values

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/test/require"
)

// processorTime is what this process has taken: on a busy machine it says more than
// the clock.
func processorTime(b *testing.B) int64 {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkPush is a push of a million numbers, in memory alone and so that what
// waits survives a kill.
func BenchmarkPush(b *testing.B) {
	for _, folder := range []string{"", b.TempDir(), "/dev/shm"} {
		for _, shape := range []struct{ keys, width int }{{1, 1 << 20}, {1000, 1}, {100_000, 1}} {
			name := map[bool]string{true: "memory", false: "file"}[folder == ""]
			if folder == "/dev/shm" {
				name = "shm"
			}
			b.Run(fmt.Sprintf("%s/%dx%d", name, shape.keys, shape.width), func(b *testing.B) {
				dir := folder
				if dir != "" {
					dir = filepath.Join(folder, fmt.Sprint("psidecar-bench-", os.Getpid(), shape.keys))
					defer os.RemoveAll(dir)
				}
				c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.99}}, Folder: dir}))(b)
				e := newEnds(b)
				w := e.dial(b, c, e.server, "ps9")
				r := rand.New(rand.NewPCG(4, 4))
				q := request{push: true, vals: normal(r, shape.keys*shape.width)}
				for k := range shape.keys {
					q.keys = append(q.keys, uint64(k*37))
				}
				frames := q.frames()
				b.SetBytes(int64(4 * shape.keys * shape.width))
				var head []byte
				began := processorTime(b)
				for b.Loop() {
					q.timestamp++
					m := request{push: true, timestamp: q.timestamp, keys: q.keys[:1], vals: q.vals[:1]}
					frames[0] = m.frames()[0]
					head, _, _ = w.sender.Encode(head[:0], message(frames))
				}
				b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
