package keep

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

func TestState(t *testing.T) {
	want := State{
		Session: ID{1, 15: 2}, Dialed: true, Client: netip.MustParseAddrPort("10.0.0.1:1"), Destination: netip.MustParseAddrPort("[fd00::1]:2"),
		Job: "10.0.0.1:9091", Origin: "cgroup 7", Far: netip.MustParseAddr("10.0.0.2"), Cgroup: 1 << 40, Netns: 9, Ready: []byte("\x05READY"),
		Until: Monotonic() + time.Second, Left: bytes.Repeat([]byte("left"), 1<<16),
	}
	file := require.Value(NewStateFile(&want))(t)
	defer file.Close()
	if !IsState(file) {
		t.Error("it is not recognised")
	}
	got, err := ReadState(file)
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	page := require.Value(NewPage(Meta{Session: ID{1}}))(t)
	defer page.Close()
	if IsState(page.File()) {
		t.Error("a page is taken for a state")
	}
}

// A file that is not just what was written is refused.
func TestStateHarmed(t *testing.T) {
	file := require.Value(NewStateFile(&State{Session: ID{3}, Left: []byte("left")}))(t)
	defer file.Close()
	info := require.Value(file.Stat())(t)
	b := make([]byte, info.Size())
	require.Value(file.ReadAt(b, 0))(t)
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 0x40
		if s, err := parseState(c); err == nil {
			t.Fatalf("with byte %d changed it is %+v", i, s)
		}
		if s, err := parseState(b[:i]); err == nil {
			t.Fatalf("cut to %d bytes it is %+v", i, s)
		}
	}
}

func FuzzParseState(f *testing.F) {
	file := require.Value(NewStateFile(&State{Session: ID{3}, Left: []byte("left")}))(f)
	defer file.Close()
	b := make([]byte, 4096)
	n, _ := file.ReadAt(b, 0)
	f.Add(b[:n])
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseState(b); err == nil && len(s.Left) > len(b) {
			t.Errorf("%d bytes left in %d", len(s.Left), len(b))
		}
	})
}

func FuzzParsePass(f *testing.F) {
	f.Add(Pass{Kind: Resume, Session: ID{9}, Ready: []byte("\x05READY")}.Append(nil))
	f.Add(Pass{Kind: Forget}.Append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := ParsePass(b); err == nil && !bytes.Equal(p.Append(nil), b) {
			t.Errorf("%x is %+v, which is %x", b, p, p.Append(nil))
		}
	})
}
