package values

import (
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/test/require"
)

// keysFrom are n keys from one on, as a piece of one value each.
func keysFrom(first uint64, n int) (pslite.Keys, *piece) {
	all := make([]uint64, n)
	for i := range all {
		all[i] = first + uint64(i)
	}
	return pslite.AppendKeys(nil, all), &piece{span: &span{Range: Range{0, 1 << 20}}, keys: n, to: 4 * n, width: 1, kind: element.Float32, known: true}
}

// aStream is a stream of its own, with a folder for its file.
func aStream(t *testing.T) (*Codec, *stream) {
	t.Helper()
	c := require.Value(New(Options{Compact: compact.DefaultLimits, Folder: t.TempDir()}))(t)
	return c, newStream(c, owner{origin: "10.0.0.1", node: "ps9", server: netip.MustParseAddrPort("10.0.0.2:9001")}, &steps{})
}

// addAll gives keys places in the layer that they belong to.
func addAll(t *testing.T, st *stream, keys pslite.Keys, p *piece) *narrowLayer {
	t.Helper()
	l, why := st.makeNarrow(p, noRule)
	if why == "" {
		_, why = st.place(nil, l, keys, p)
	}
	if why != "" {
		t.Fatal(why)
	}
	return l
}

// A layer whose file has no room for more keys moves to memory in the middle of a push.
// It counts as much as it takes: all of it is given back when it is forgotten.
func TestALayerThatMovesToMemoryIsCounted(t *testing.T) {
	c, st := aStream(t)
	keys, p := keysFrom(0, leastKeys) // as many as one extent has
	l := addAll(t, st, keys, p)
	st.commit()
	c.budget.limit = c.budget.used.Load()
	for err := error(nil); err == nil; { // fill the segment
		_, err = st.file.Alloc(kindTook, mapped.Tag{}, 2*leastKeys*entrySize)
	}
	c.budget.limit += 32 << 10 // no segment, but cells
	keys, p = keysFrom(1000, 100)
	addAll(t, st, keys, p)
	if l.extent != nil {
		t.Fatal("the layer is in the file: there was room for its keys")
	}
	st.restart(ReasonRestarted)
	if used := c.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes are counted of nothing", used)
	}
}

// A push that names a key twice has one key counted.
func TestAKeyThatIsNamedTwiceCountsOnce(t *testing.T) {
	for _, folder := range []bool{false, true} {
		c, st := aStream(t)
		if !folder {
			st.folder = ""
		}
		_, p := keysFrom(5, 2)
		addAll(t, st, pslite.AppendKeys(nil, []uint64{5, 5}), p)
		st.restart(ReasonRestarted)
		if used := c.budget.used.Load(); used != 0 {
			t.Errorf("with a file: %v: %d bytes are counted of nothing", folder, used)
		}
	}
}

// Two numbers of values of one key cannot both be meant: nothing of it waits.
func TestAKeyWithTwoLengthsHasNoLayer(t *testing.T) {
	_, st := aStream(t)
	_, p := keysFrom(5, 2)
	p.lens, p.unit, p.to = pslite.Lens{2, 0, 0, 0, 3, 0, 0, 0}, 4, 4*5
	l, why := st.makeNarrow(p, noRule)
	if why == "" {
		_, why = st.place(nil, l, pslite.AppendKeys(nil, []uint64{5, 5}), p)
	}
	if why != ReasonLength {
		t.Errorf("the key has a place: %q", why)
	}
	st.restart(ReasonRestarted)
}
