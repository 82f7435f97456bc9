package values

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/test/require"
)

// Once a threshold is over and what waited has gone, nothing is kept of a worker: no memory, and no
// file. Until then a request that comes again goes as it went.
func TestNothingIsKeptAfterAThreshold(t *testing.T) {
	e := newEnds(t)
	folder := t.TempDir()
	codec := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.9}}, Folder: folder}))(t)
	w := e.dial(t, codec, e.server, "ps9")
	defer w.close()
	r := rand.New(rand.NewPCG(1, 2))
	files := func() int { return len(require.Value(os.ReadDir(folder))(t)) }
	var last request
	step := 0
	push := func(n int) {
		for range n {
			last = whole(r, step)
			w.carry(t, last.frames())
			step++
		}
	}
	push(20)
	require.NoError(t, codec.SetRules(nil))
	push(64) // an empty layer of keys of few values is dropped in every 64th push
	if codec.StillWaiting() > 0 || codec.Counts().StateBytes == 0 || files() == 0 {
		t.Fatalf("after the threshold %d values wait; %+v, %d files", codec.StillWaiting(), codec.Counts(), files())
	}
	push(mostRepeats / 2)
	if codec.Counts().StateBytes == 0 {
		t.Error("requests that may be repeated are forgotten")
	}
	push(mostRepeats)
	if n := codec.Counts().StateBytes; n != 0 || files() != 0 {
		t.Errorf("in the end %d bytes and %d files are left", n, files())
	}
}
