package jobs

import (
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// A file gives what was written to it, or an error, whatever happens to it.
func TestKeptFileGivesWhatWasWrittenOrAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job", jobFile)
	want := saved{Job: "10.0.0.1:9000", Run: testRun, Local: []int32{9, 11}, Displaced: true}
	require.Value(WriteKept(path, want))(t)
	whole := require.Value(os.ReadFile(path))(t)
	same := func(s saved) bool {
		return s.Job == want.Job && s.Run == want.Run && slices.Equal(s.Local, want.Local) && s.Displaced == want.Displaced
	}
	r := rand.New(rand.NewPCG(1, 1))
	refused := 0
	for i := range 400 {
		b := slices.Clone(whole)
		switch i % 3 {
		case 0:
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		case 1:
			b = b[:r.IntN(len(b))]
		case 2:
			from := r.IntN(len(b))
			clear(b[from:min(from+16, len(b))])
		}
		require.NoError(t, os.WriteFile(path, b, 0o600))
		var got saved
		if err := ReadKept(path, &got); err == nil && !same(got) {
			t.Errorf("%q gives %+v", b, got)
		} else if err != nil {
			if refused++; !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), path) {
				t.Errorf("%q gives %v", b, err)
			}
		}
	}
	if refused < 350 {
		t.Errorf("%d of 400 were refused", refused)
	}
	old := `{"job":"10.0.0.1:9000","run":"` + string(testRun) + `","local":[9,11],"displaced":true}`
	require.NoError(t, os.WriteFile(path, []byte(old), 0o600))
	var got saved
	if err := ReadKept(path, &got); err != nil || !same(got) {
		t.Errorf("one without a checksum gives %+v, %v", got, err)
	}
}

// again returns the jobs that another proxy finds in the folder.
func again(t *testing.T, o Options) *Jobs {
	t.Helper()
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	j := require.Value(New(o))(t)
	t.Cleanup(func() {
		for _, x := range j.allJobs() {
			x.close()
		}
	})
	return j
}

// remembered is the job as another proxy with these options takes it up.
func remembered(t *testing.T, before *job, o Options) *job {
	t.Helper()
	x := again(t, o).named(before.name, before.run)
	if x == nil {
		t.Fatal("the job is not remembered")
	}
	return x
}

// ask makes a worker's request for a key and reports how it ends.
func ask(j *Jobs, server netip.AddrPort, key uint64) (passes bool, err error) {
	c := &requests{jobs: j, destination: server, sender: pslite.WorkerID(0), peer: pslite.Empty}
	var m pslite.Message
	m.Meta.Request, m.Meta.Push, m.Meta.Timestamp = true, true, 3
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{key}), make([]byte, 4)}
	return c.inspect(&m, pslite.DMLC)
}

var (
	server0 = netip.MustParseAddrPort("10.0.0.1:9001")
	foreign = netip.MustParseAddrPort("10.9.9.9:9001")
)

// corrupt changes a byte in the middle of a file.
func corrupt(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		b[min(len(b)/2, 12)] ^= 0x10
		err = os.WriteFile(path, b, 0o600)
	}
	require.NoError(t, err)
}

// Where the state of all jobs is gone while connections fail without a proxy, keys may be displaced:
// no worker of an unknown job gets past until somebody says that it may, whoever the proxy is. A
// proxy that has a job, or had one, does not mind.
func TestStateThatIsGone(t *testing.T) {
	x := oneJob(t, Options{})
	x.close()
	dir := x.jobs.opts.Dir
	kept := again(t, Options{Dir: dir})
	kept.Closed(5)
	if passes, err := ask(kept, foreign, 7); !passes || err != nil {
		t.Errorf("beside a job that is known one passes: %v, %v", passes, err)
	}
	require.NoError(t, os.RemoveAll(dir))
	var path string
	for i := range 2 {
		j := again(t, Options{Dir: dir})
		if passes, err := ask(j, foreign, 7); i == 0 && (!passes || err != nil) {
			t.Errorf("where all connections may go direct one passes: %v, %v", passes, err)
		}
		j.Closed(5)
		j.Closed(6)
		_, err := ask(j, foreign, 7)
		if lost := j.folder.missing(); len(lost) != 1 || reason.Of(err) != reason.State || !strings.Contains(err.Error(), lost[0].path) {
			t.Fatalf("%d are lost, and a request gives %v", len(lost), err)
		} else {
			path = lost[0].path
		}
	}
	require.NoError(t, os.RemoveAll(path))
	if passes, err := ask(again(t, Options{Dir: dir}), foreign, 7); !passes || err != nil {
		t.Errorf("then one passes: %v, %v", passes, err)
	}
}

// A job goes on as it was if only one of its two files is damaged, and unknown jobs are unaffected.
// Where a kill came between the two writes the copy is ahead, and what it has counts.
func TestDamagedJobIsReadFromItsCopy(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, path string){
		"damaged": corrupt,
		"gone":    func(t *testing.T, path string) { os.Remove(path) },
		"cut":     func(t *testing.T, path string) { os.Truncate(path, 100) },
		"empty":   func(t *testing.T, path string) { os.Truncate(path, 0) },
	} {
		for _, file := range []string{jobFile, jobCopy} {
			x := oneJob(t, Options{})
			before := filepath.Join(t.TempDir(), jobFile)
			require.NoError(t, os.Rename(filepath.Join(x.dir, jobFile), before))
			x.displaced = true
			require.NoError(t, x.save())
			x.close()
			if file == jobFile { // of before the copy
				require.NoError(t, os.Rename(before, filepath.Join(x.dir, jobFile)))
			}
			harm(t, filepath.Join(x.dir, file))
			y := remembered(t, x, Options{Dir: x.jobs.opts.Dir})
			if !y.displaced || !maps.Equal(y.local, x.local) || y.dir != x.dir {
				t.Errorf("%s %s: displaced %v, workers %v", name, file, y.displaced, y.local)
			}
			if lost := y.jobs.folder.missing(); len(lost) > 0 {
				t.Errorf("%s %s: %d jobs are lost", name, file, len(lost))
			}
			if passes, err := ask(y.jobs, foreign, 7); !passes || err != nil {
				t.Errorf("%s %s: a request of an unknown job passes: %v, %v", name, file, passes, err)
			}
			// Both are written again, so that the next one may be damaged.
			y.checkKept(time.Now().Add(checkEvery))
			for _, file := range []string{jobFile, jobCopy} {
				if s, _, err := readSaved(filepath.Join(y.dir, file)); err != nil || !s.Displaced {
					t.Errorf("%s %s: then %s: %v", name, file, file, err)
				}
			}
			y.close()
		}
	}
}

// A job of which both files are damaged does not go on; others do. Until its files are
// removed no worker of an unknown job gets past.
func TestDamagedJob(t *testing.T) {
	x := oneJob(t, Options{})
	x.close()
	dir := x.jobs.opts.Dir
	other := filepath.Join(dir, "00112233445566aa")
	require.NoError(t, os.CopyFS(other, os.DirFS(x.dir)))
	corrupt(t, filepath.Join(other, jobFile))
	corrupt(t, filepath.Join(other, jobCopy))
	for range 2 { // the second time it is aside already
		j := again(t, Options{Dir: dir})
		if passes, err := ask(j, server0, 7); !passes || err != nil {
			t.Errorf("a request of the other job passes: %v, %v", passes, err)
		}
		if _, err := ask(j, foreign, 7); reason.Of(err) != reason.State {
			t.Errorf("one of an unknown job gives %v", err)
		}
		if _, err := os.Stat(other); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the damaged folder is still there: %v", err)
		}
		lost := j.folder.missing()
		if len(lost) != 1 {
			t.Fatalf("%d jobs are lost", len(lost))
		}
		_, err := ask(j, foreign, 7)
		if err == nil || !strings.Contains(err.Error(), lost[0].path) {
			t.Errorf("%v does not name %s", err, lost[0].path)
		}
		for _, x := range j.allJobs() {
			x.close()
		}
	}
	j := again(t, Options{Dir: dir})
	require.NoError(t, os.RemoveAll(j.folder.missing()[0].path))
	if passes, err := ask(j, foreign, 7); !passes || err != nil {
		t.Errorf("with the folder removed one of an unknown job passes: %v, %v", passes, err)
	}
}

// Without what the ledger had a job goes on with all keys at home, and is refused
// where they are displaced.
func TestLostLedger(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, path string){
		"damaged": corrupt,
		"gone":    func(t *testing.T, path string) { os.Remove(path) },
		"cut":     func(t *testing.T, path string) { os.Truncate(path, 100) },
	} {
		for _, displaced := range []bool{false, true} {
			x := oneJob(t, Options{})
			x.displaced = displaced
			require.NoError(t, x.save())
			x.close()
			harm(t, filepath.Join(x.dir, "worker-9"))
			j := again(t, Options{Dir: x.jobs.opts.Dir})
			passes, err := ask(j, server0, 7)
			if !displaced && (!passes || err != nil) {
				t.Errorf("%s: with keys at home a request passes: %v, %v", name, passes, err)
			}
			if displaced && (reason.Of(err) != reason.State || !strings.Contains(err.Error(), "10.0.0.1:9000")) {
				t.Errorf("%s: with displaced keys a request gives %v", name, err)
			}
			if s := j.States()[0]; displaced != (s.Trouble != "") {
				t.Errorf("%s: its trouble is %q", name, s.Trouble)
			}
		}
	}
}

// fullDisk returns a full file system, and a function that frees room.
func fullDisk(t *testing.T) (dir string, empty func()) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		if errors.Is(err, unix.EPERM) {
			require.Missing(t, "needs CAP_SYS_ADMIN to mount a small file system")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	return dir, func() {
		require.NoError(t, os.Remove(filler))
	}
}

// A proxy that ends in order on a disk that has run full leaves the requests under
// way to the next one.
func TestEndsOnFullDisk(t *testing.T) {
	dir, empty := fullDisk(t)
	empty()
	x := jobIn(t, dir, Options{})
	if passes, err := ask(x.jobs, server0, 7); !passes || err != nil {
		t.Fatalf("a request passes: %v, %v", passes, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	require.NoError(t, x.leaveUnfinished())
	x.close()
	y := remembered(t, x, Options{Dir: dir})
	if under := y.router.UnderWay(); len(under) != 1 {
		t.Errorf("%d requests are under way in the next proxy", len(under))
	}
}

// On a full disk a job is carried, its keys are not moved, and it says so. When
// there is room it is kept like any other.
func TestFullFolder(t *testing.T) {
	dir, empty := fullDisk(t)
	x := jobIn(t, dir, Options{})
	x.locked(func() error { x.router.UseResend(); return nil })
	if passes, err := ask(x.jobs, server0, 7); !passes || err != nil {
		t.Errorf("a request passes: %v, %v", passes, err)
	}
	if err := x.mayBeDisplaced(); !errors.Is(err, unix.ENOSPC) || x.displaced {
		t.Errorf("keys may be displaced: %v", err)
	}
	x.checkKept(time.Now())
	if s := x.state(); !strings.Contains(s.Trouble, "no space left") {
		t.Errorf("its trouble is %q", s.Trouble)
	}
	empty()
	x.checkKept(time.Now().Add(checkEvery))
	if s := x.state(); s.Trouble != "" {
		t.Errorf("with room its trouble is %q", s.Trouble)
	}
	if err := x.mayBeDisplaced(); err != nil {
		t.Error(err)
	}
	j := again(t, Options{Dir: dir})
	if l := j.named(x.name, x.run).ledgers[pslite.WorkerID(0)]; !l.Seen(route.ID{Timestamp: 3}) || !j.named(x.name, x.run).displaced {
		t.Error("the next proxy does not know what there was before there was room")
	}
}

// A job whose keys are placed is refused until it can be kept: a proxy that did
// not know it would send its requests to servers that do not have the keys.
func TestPlacedInFullFolder(t *testing.T) {
	dir, empty := fullDisk(t)
	p := &plan.Placement{K: 2, Server: []int{0, 1}, Runs: []plan.PlacedRun{{Keys: []uint64{7}, Owners: []int32{1}}}}
	x := jobIn(t, dir, Options{Placement: p})
	if _, err := ask(x.jobs, server0, 8); reason.Of(err) != reason.State {
		t.Errorf("a request gives %v", err)
	}
	empty()
	x.checkKept(time.Now())
	if passes, err := ask(x.jobs, server0, 8); !passes || err != nil {
		t.Errorf("with room it passes: %v, %v", passes, err)
	}
	if _, err := os.Stat(filepath.Join(x.dir, jobFile)); err != nil {
		t.Error(err)
	}
}

// Ledgers of a job that is not named are set aside, and not removed, also in a folder whose
// name looks like a pattern.
func TestLedgersWithoutAJobAreSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[jobs] *?")
	orphan := filepath.Join(dir, "0011223344556677")
	require.NoError(t, os.MkdirAll(orphan, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(orphan, "worker-9"), []byte("a ledger"), 0o600))
	again(t, Options{Dir: dir})
	left, err := pathsLike(dir, aside+"*")
	if err != nil || len(left) != 1 {
		t.Fatalf("%d folders are set aside, %v", len(left), err)
	}
	if _, err := os.Stat(filepath.Join(left[0], "worker-9")); err != nil {
		t.Errorf("the ledger: %v", err)
	}
}

// A job that runs for days is still known to a proxy after this one.
func TestLongJobIsKnownToTheNextProxy(t *testing.T) {
	x := oneJob(t, Options{})
	long := time.Now().Add(-2 * forgetAfter)
	for _, path := range []string{filepath.Join(x.dir, jobFile), x.dir} {
		require.NoError(t, os.Chtimes(path, long, long))
	}
	x.adopt(&requests{jobs: x.jobs}) // of a worker elsewhere to a server here
	x.checkKept(time.Now())
	if again(t, Options{Dir: x.jobs.opts.Dir}).named(x.name, testRun) == nil {
		t.Error("it is forgotten while it has connections")
	}
}

// Time without a proxy does not count: the job waits for the next one.
func TestJobWaitsForDaysForTheNextProxy(t *testing.T) {
	x := oneJob(t, Options{})
	x.close()
	dir := x.jobs.opts.Dir
	long := time.Now().Add(-2 * forgetAfter)
	for _, path := range []string{filepath.Join(x.dir, jobFile), x.dir, filepath.Join(dir, bootFile)} {
		require.NoError(t, os.Chtimes(path, long, long))
	}
	j := again(t, Options{Dir: dir})
	if j.named(x.name, testRun) == nil {
		t.Error("it is forgotten")
	}
	j.folder.ranUntil(time.Now())
	if info, err := os.Stat(filepath.Join(dir, bootFile)); err != nil || time.Since(info.ModTime()) > time.Hour {
		t.Errorf("that a proxy runs is not noted: %v", err)
	}
}

// Files from before the host's boot, and files not touched for long, are removed;
// those set aside are kept, up to a bound.
func TestTidyRemovesWhatIsOld(t *testing.T) {
	x := oneJob(t, Options{})
	x.close()
	dir := x.jobs.opts.Dir
	stale := filepath.Join(dir, "0123456789abcdef")
	require.NoError(t, os.Mkdir(stale, 0o700))
	long := time.Now().Add(-2 * forgetAfter)
	require.NoError(t, os.Chtimes(stale, long, long))
	for i := range 2 * maxAside {
		require.NoError(t, os.Mkdir(filepath.Join(dir, aside+string(rune('a'+i))), 0o700))
	}
	j := again(t, Options{Dir: dir})
	if j.named(x.name, x.run) == nil {
		t.Error("the job is forgotten")
	}
	left := require.Value(os.ReadDir(dir))(t)
	if len(left) != maxAside+3 { // the job, the reserve, and what says when the host was started
		t.Errorf("%d entries are left, want %d", len(left), maxAside+3)
	}
	boot := filepath.Join(dir, bootFile)
	b := require.Value(os.ReadFile(boot))(t)
	b[0] ^= 1
	require.NoError(t, os.WriteFile(boot, b, 0o600))
	if again(t, Options{Dir: dir}).named(x.name, x.run) != nil {
		t.Error("a job of before the host was started goes on")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("%d entries are left after a start of the host, %v", len(left), err)
	}
}
