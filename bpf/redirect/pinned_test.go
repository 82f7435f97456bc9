package redirect

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// attached counts what the kernel says is attached to a cgroup.
func attached(t *testing.T, cgroup string) (n int) {
	t.Helper()
	dir := require.Value(os.Open(cgroup))(t)
	defer dir.Close()
	for _, h := range slices.Concat(groupHooks, proxyHooks) {
		result := require.Value(link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: h.attach}))(t)
		n += len(result.Programs)
	}
	return n
}

// pinned lists the files in a state's folder and beside it.
func pinned(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Dir(dir), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, "psidecar") { // the kernel has files of its own there
			files = append(files, path)
		}
		return err
	})
	require.NoError(t, err)
	return files
}

// TestKilledLoader: after kill -9 of whoever attached, all works on; after
// Unload nothing is left, and nothing is redirected.
func TestKilledLoader(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	h := n.Host(0)
	four, _, _, _ := serve(t, n.Host(1))
	dir := filepath.Join(bpfFolder(t), "psidecar")
	job := require.Value(h.Group("job"))(t)
	if r, err := Open(Options{Dir: dir}); err != nil { // mounts it where the test's cleanup finds it
		t.Fatal(err)
	} else if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	loader := hoststest.Start(t, h, "loader", hoststest.Task("load", dir, job))
	if got := loader.Line(); got != "attached" {
		t.Fatal(got)
	}
	require.NoError(t, loader.Kill())
	<-loader.Done()
	if n := attached(t, job); n != len(groupHooks) {
		t.Errorf("%d programs attached after the loader's end, want %d", n, len(groupHooks))
	}

	r := require.Value(Open(Options{Dir: dir}))(t)
	group := require.Value(ID(job))(t)
	startProxy(t, r, h, group, "0s")
	client := startClient(t, h, "job")
	if got := client.do(order{How: "go", To: four}); got.Reply != "proxy "+four {
		t.Errorf("%+v", got)
	}
	if stats, err := r.ProgramStats(group); err != nil || len(stats) != len(groupHooks) {
		t.Errorf("%v, %v", stats, err)
	}
	if _, err := r.ProgramStats(group + 1); err == nil {
		t.Error("a group that is not there has programs")
	}
	// Another loader takes over: new programs in the place of the old ones.
	require.NoError(t, r.SetPolicy(group, Policy{FailClosed: true}))
	require.Value(r.Attach(job, Policy{}))(t)
	if n := attached(t, job); n != len(groupHooks) {
		t.Errorf("%d programs attached after attaching again, want %d", n, len(groupHooks))
	}
	groups, err := r.Groups()
	if err != nil || len(groups) != 1 || groups[0] != (Group{group, job, Policy{FailClosed: true}}) {
		t.Errorf("%v, %v: it must go on failing closed", groups, err)
	}
	if got := client.do(order{How: "go", To: four}); got.Reply != "proxy "+four {
		t.Errorf("%+v", got)
	}
	require.NoError(t, r.Close())

	removed := require.Value(Unload(dir))(t)
	if want := len(groupHooks) + len(proxyHooks) + len(mapNames); len(removed) != want {
		t.Errorf("removed %d pins, want %d: %v", len(removed), want, removed)
	}
	sidecar := require.Value(h.Group("sidecar"))(t)
	if left := pinned(t, dir); len(left) > 0 || attached(t, job)+attached(t, sidecar) > 0 {
		t.Errorf("left: pins %v, %d programs at the job, %d at the proxy", left, attached(t, job), attached(t, sidecar))
	}
	if got := client.do(order{How: "go", To: four}); got.Reply != "direct "+four {
		t.Errorf("after unloading: %+v", got)
	}
	if removed, err := Unload(dir); err != nil || len(removed) > 0 {
		t.Errorf("unloading again: %v, %v", removed, err)
	}
}

// TestUnfinished: what a loader leaves that is killed in the middle has no
// effect and goes with the next one, or with Unload.
func TestUnfinished(t *testing.T) {
	r := openState(t)
	half := []string{
		filepath.Join(filepath.Dir(r.dir), unfinished+"psidecar"),
		filepath.Join(r.dir, unfinished+"group-7"),
	}
	leave := func() {
		t.Helper()
		for _, dir := range half {
			require.NoError(t, os.Mkdir(dir, 0o700))
			m := require.Value(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}))(t)
			require.NoError(t, m.Pin(filepath.Join(dir, "something")))
			require.NoError(t, m.Close())
		}
	}
	gone := func(how string) {
		t.Helper()
		for _, dir := range half {
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("%s left %s", how, dir)
			}
		}
	}
	leave()
	require.NoError(t, sweep(r.dir))
	gone("sweeping")
	leave()
	require.Value(Unload(r.dir))(t)
	gone("Unload")
}

// TestOtherVersion: a state of other layouts is not touched, and the error
// says what to do.
func TestOtherVersion(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	dir := filepath.Join(bpfFolder(t), "psidecar")
	r := require.Value(Open(Options{Dir: dir}))(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "groups")))
	other := require.Value(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 12, MaxEntries: 4}))(t)
	defer other.Close()
	require.NoError(t, other.Pin(filepath.Join(dir, "groups")))
	require.NoError(t, r.Close())
	if r, err := Open(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "psidecar unload") {
		t.Errorf("opened: %v, %v", r, err)
	}
	require.Value(Unload(dir))(t)
	if left := pinned(t, dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestEarlierVersion: a state that lacks the map of closed sockets gets it.
func TestEarlierVersion(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	dir := filepath.Join(bpfFolder(t), "psidecar")
	r, err := Open(Options{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, errors.Join(r.Close(), os.Remove(filepath.Join(dir, endedMap))))
	r = require.Value(Open(Options{Dir: dir}))(t)
	if _, ok := r.Destination(1); ok {
		t.Error("the destination of a socket is known that nobody has")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, endedMap)); err != nil {
		t.Error(err)
	}
	require.Value(Unload(dir))(t)
}

// TestUnmounted: the BPF file system that Open mounted goes with the last state
// in it, and one that somebody else mounted stays.
func TestUnmounted(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	isBPF := func(dir string) bool {
		t.Helper()
		var s unix.Statfs_t
		require.NoError(t, unix.Statfs(dir, &s))
		return uint32(s.Type) == bpfMagic
	}
	open := func(dir string) {
		t.Helper()
		r := require.Value(Open(Options{Dir: dir}))(t)
		require.NoError(t, r.Close())
	}
	unload := func(dir string) {
		t.Helper()
		if gone, err := Unload(dir); err != nil || len(gone) == 0 {
			t.Fatalf("unloading %s: %v, %v", dir, gone, err)
		}
	}
	ours := bpfFolder(t)
	one, two := filepath.Join(ours, "one"), filepath.Join(ours, "two")
	open(one)
	open(two)
	if unload(one); !isBPF(ours) {
		t.Error("a file system was unmounted in which another state is")
	}
	if unload(two); isBPF(ours) {
		t.Error("the file system that Open mounted is there after Unload")
	}
	theirs := bpfFolder(t)
	require.NoError(t, unix.Mount("bpf", theirs, "bpf", 0, ""))
	one = filepath.Join(theirs, "one")
	open(one)
	if unload(one); !isBPF(theirs) {
		t.Error("a file system that Open did not mount was unmounted")
	}
}

// TestBadOptions: what cannot work is said before anything is made.
func TestBadOptions(t *testing.T) {
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o600))
	for _, tc := range []struct {
		options Options
		want    string
	}{
		{Options{Sockets: 3}, "1,024"},
		{Options{Dir: filepath.Join(full, "psidecar")}, "not empty"},
		{Options{Dir: "/nonexistent/bpf/psidecar"}, "/nonexistent/bpf"},
	} {
		if r, err := Open(tc.options); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, %v", tc.options, r, err)
		}
	}
	if _, err := Unload(filepath.Join(full, "psidecar")); err != nil {
		t.Errorf("unloading where nothing can be: %v", err)
	}
	for _, e := range []Exclusion{{}} {
		if _, err := e.key(); err == nil {
			t.Errorf("exclusion %+v", e)
		}
	}
}

// TestCgroupGone: a group whose cgroup was removed is told and detached like
// any other.
func TestCgroupGone(t *testing.T) {
	r := openState(t)
	cgroup := require.Value(os.MkdirTemp(require.CgroupV2(t), "psd-redirect-"))(t)
	id, err := r.Attach(cgroup, Policy{})
	if err = errors.Join(err, os.Remove(cgroup)); err != nil {
		t.Fatal(err)
	}
	if groups, err := r.Groups(); err != nil || len(groups) != 1 || groups[0].ID != id {
		t.Errorf("%v, %v", groups, err)
	}
	if err := r.Detach(id); err != nil {
		t.Error(err)
	}
	if groups, err := r.Groups(); err != nil || len(groups) != 0 {
		t.Errorf("%v, %v", groups, err)
	}
}
