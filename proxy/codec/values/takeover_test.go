package values

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/test/require"
)

// never has nothing happen by chance.
type never struct{}

func (never) Uint64() uint64 { return 1 << 63 }

// The servers between which onItsWay moves keys.
var fromAndTo = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:9000"), netip.MustParseAddrPort("198.18.0.3:9000")}

// followAll has all keys be with the second server.
func followAll(c *Codec) { c.Follow("here", 9, fromAndTo, nil, func(uint64) int32 { return 1 }) }

// onItsWay is a proxy that is killed at such a store while all keys move to a server; 0: it is
// not killed.
func onItsWay(t *testing.T, fuse int) (d *doomed, killed bool) {
	e := newEnds(t)
	d = &doomed{t: t, r: rand.New(never{}), folder: filepath.Join(folderInMemory(t), "state"), rules: []Rule{{Unpulled: true, Threshold: 0.99}}}
	d.begin()
	e.worker = d.codec
	for i, to := range fromAndTo {
		w := e.dialServer(t, to, nil)
		w.carry(t, whole(rand.New(rand.NewPCG(uint64(i), 9)), 1).frames())
	}
	d.fuse = fuse
	defer func() {
		killed, d.fuse = recover() != nil, 0
	}()
	followAll(d.codec)
	return d, false
}

// A proxy is killed while keys move, the next one while it takes over, and the one after
// that as well, each between any two of its stores, and whatever order the files' names
// have: nothing is lost, and nothing counts twice.
func TestKilledTwiceWhileTakingOver(t *testing.T) {
	require.Time(t)
	d, _ := onItsWay(t, 0)
	want, squares := d.codec.StillWaiting(), d.codec.Waiting()
	d.kill()
	cases := 0
	const fuse = 4 // something is on its way then
	for second, died := 1, true; died; second++ {
		died = false
		for third, again := 1, true; again; third++ {
			cases++
			d, _ := onItsWay(t, fuse)
			d.kill()
			for _, at := range []int{second, third} {
				renamed(t, d.folder, uint64(cases))
				if again = d.restored(at); !again {
					break
				}
				died = true
			}
			if again {
				d.restored(0)
			}
			followAll(d.codec)
			if n, sum := d.codec.StillWaiting(), d.codec.Waiting(); n != want || sum != squares {
				t.Fatalf("killed at store %d, then at %d and %d: %d values wait, of squares %v, want %d of %v", fuse, second, third, n, sum, want, squares)
			}
			d.kill()
		}
	}
	if cases < 500 {
		t.Errorf("%d cases are too few to tell anything", cases)
	}
}

// restored begins a proxy that is killed at such a store while it takes over; 0: it is not.
func (d *doomed) restored(fuse int) (killed bool) {
	c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: d.rules, Folder: d.folder}))(d.t)
	c.stepped, d.codec, d.fuse = d.step, c, fuse
	defer func() {
		if p := recover(); p == errKilled {
			d.kill()
			killed = true
		} else if p != nil {
			panic(p)
		}
		d.fuse = 0
	}()
	require.Value(c.Restore(""))(d.t)
	return false
}

// renamed gives the files of a folder other names, and with them another order.
func renamed(t *testing.T, folder string, seed uint64) {
	t.Helper()
	entries := require.Value(os.ReadDir(folder))(t)
	r := rand.New(rand.NewPCG(seed, uint64(len(entries))))
	for _, e := range entries {
		prefix, _, _ := strings.Cut(e.Name(), "-")
		to := fmt.Sprintf("%s-%016x%s", prefix, r.Uint64(), fileSuffix)
		require.NoError(t, os.Rename(filepath.Join(folder, e.Name()), filepath.Join(folder, to)))
	}
}

// stuck is a folder whose files cannot be removed for a while.
type stuck struct {
	t     *testing.T
	files []string
	held  bool
}

// hold has the removal of the files fail from now on: others are under their names.
func (s *stuck) hold() {
	if s.held {
		return
	}
	s.held = true
	for _, path := range s.files {
		err := os.Rename(path, path+".aside")
		if err == nil {
			err = os.MkdirAll(filepath.Join(path, "not empty"), 0o700)
		}
		require.NoError(s.t, err)
	}
}

// release gives the files their names back.
func (s *stuck) release() {
	if !s.held {
		return
	}
	for _, path := range s.files {
		err := os.RemoveAll(path)
		if err == nil {
			err = os.Rename(path+".aside", path)
		}
		require.NoError(s.t, err)
	}
}

// What is in the files of a killed proxy, and what was on its way between them, counts once
// also where the next proxy cannot remove them: they are found again by the one after it.
func TestFilesThatCannotBeRemoved(t *testing.T) {
	d, _ := onItsWay(t, 0)
	want, squares := d.codec.StillWaiting(), d.codec.Waiting()
	d.kill()
	for fuse := 1; ; fuse++ {
		d, killed := onItsWay(t, fuse)
		d.kill()
		if !killed {
			if fuse < 8 {
				t.Errorf("%d stores are too few to tell anything", fuse-1)
			}
			return
		}
		s := &stuck{t: t}
		for _, refused := range []bool{true, false} {
			c, err := New(Options{Compact: compact.DefaultLimits, Folder: d.folder})
			require.NoError(t, err)
			d.codec = c
			if refused {
				s.files = require.Value(filepath.Glob(filepath.Join(d.folder, "*"+fileSuffix)))(t)
				c.stepped = s.hold // once all files are open, with the first store of what they hold
			}
			_, err = c.takeOver("")
			s.release()
			if (err != nil) != refused {
				t.Fatalf("killed at store %d, files cannot be removed: %v; they are taken over with %v", fuse, refused, err)
			}
			s.held = false
			if refused {
				d.kill()
			}
		}
		followAll(d.codec)
		if n, sum := d.codec.StillWaiting(), d.codec.Waiting(); n != want || sum != squares {
			t.Errorf("killed at store %d: %d values wait, of squares %v, want %d of %v", fuse, n, sum, want, squares)
		}
		for _, st := range d.codec.streams {
			if st.file != nil {
				st.file.Remove()
			}
		}
	}
}

// What is in a file that cannot be removed counts once, however often the same proxy looks for
// files: the note that it was taken over is in a file that this proxy has in use, and is gone
// once that file is.
func TestFileThatStaysIsTakenOverOnce(t *testing.T) {
	d, _ := onItsWay(t, 0)
	want, squares := d.codec.StillWaiting(), d.codec.Waiting()
	d.kill()
	c, err := New(Options{Compact: compact.DefaultLimits, Folder: d.folder})
	require.NoError(t, err)
	d.codec = c
	s := &stuck{t: t}
	if s.files, err = filepath.Glob(filepath.Join(d.folder, "*"+fileSuffix)); err != nil || len(s.files) == 0 {
		t.Fatal(s.files, err)
	}
	c.stepped = s.hold
	if _, err := c.Restore(""); err == nil {
		t.Fatal("the files were removed")
	}
	s.release()
	for range 3 {
		if n, err := c.Restore(""); n != 0 || err != nil {
			t.Errorf("%d streams are taken over again, with error %v", n, err)
		}
	}
	if n, sum := c.StillWaiting(), c.Waiting(); n != want || sum != squares {
		t.Errorf("%d values wait, of squares %v, want %d of %v", n, sum, want, squares)
	}
	for _, path := range s.files {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, st := range c.streams {
		if st.file != nil {
			st.file.Remove()
		}
	}
}
