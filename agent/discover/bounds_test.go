package discover

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// opened counts the files of a tree that are opened, by the last part of their
// name.
type opened struct {
	fstest.MapFS
	count map[string]int
}

func (o opened) Open(name string) (fs.File, error) {
	o.count[name[strings.LastIndexByte(name, '/')+1:]]++
	return o.MapFS.Open(name)
}

// nodes is a host with n processes that look like nodes, each holding a socket in
// one network namespace.
func nodes(n int) opened {
	tree := fstest.MapFS{}
	env := []byte("DMLC_ROLE=worker\x00DMLC_PS_ROOT_URI=198.18.0.1\x00DMLC_PS_ROOT_PORT=8000\x00")
	table := strings.Builder{}
	table.WriteString(tcpHeader)
	for i := range n {
		fmt.Fprintf(&table, "   0: 020012C6:%04X 010012C6:1F40 01 0:0 00:0 0     0        0 %d 1 0\n", i, 7000+i)
	}
	for i := range n {
		dir := fmt.Sprint(100 + i)
		tree[dir+"/environ"] = &fstest.MapFile{Data: env}
		tree[dir+"/cgroup"] = &fstest.MapFile{Data: []byte("0::/job\n")}
		tree[dir+"/ns/net"] = &fstest.MapFile{Data: []byte("net:[1]"), Mode: fs.ModeSymlink}
		tree[dir+"/fd/3"] = &fstest.MapFile{Data: fmt.Appendf(nil, "socket:[%d]", 7000+i), Mode: fs.ModeSymlink}
		tree[dir+"/net/tcp"] = &fstest.MapFile{Data: []byte(table.String())}
	}
	return opened{tree, map[string]int{}}
}

// A process is not read again, and a network namespace's table is read once for
// all.
func TestFinderRemembers(t *testing.T) {
	const n, looks = 50, 10
	proc := nodes(n)
	f := NewFinder(proc)
	for range looks {
		s, err := f.Take(Look{Due: func(pid int) bool { return pid == 100 }})
		if err != nil || len(s.Processes) != n || len(s.owners) != n {
			t.Fatalf("%d processes, %d connections, %v; want %d", len(s.Processes), len(s.owners), err, n)
		}
	}
	for name, want := range map[string]int{"environ": n, "cmdline": n, "cgroup": n, "tcp": looks} {
		if got := proc.count[name]; got != want {
			t.Errorf("%s: opened %d times, want %d", name, got, want)
		}
	}
	f.Forget(100)
	if _, err := f.Take(Look{Due: func(int) bool { return false }}); err != nil || proc.count["environ"] != n+1 {
		t.Errorf("a process that has changed: %d environments read, %v; want %d", proc.count["environ"], err, n+1)
	}
	if _, err := f.Take(Look{Anew: true}); err != nil || proc.count["environ"] != 2*n+1 {
		t.Errorf("all anew: %d environments read, %v; want %d", proc.count["environ"], err, 2*n+1)
	}
}

// Another process with the number of one before is not taken for it.
func TestFinderNoticesAnotherProcess(t *testing.T) {
	proc := nodes(1)
	stat := func(at string) {
		proc.MapFS["100/stat"] = &fstest.MapFile{Data: []byte("100 (a) b) S " + strings.Repeat("1 ", 18) + at + " 1 2 3\n")}
	}
	stat("500")
	f := NewFinder(proc)
	for _, tc := range []struct {
		began, role string
		want        string
	}{{"500", "worker", "worker"}, {"500", "server", "worker"}, {"501", "server", "server"}} {
		stat(tc.began)
		proc.MapFS["100/environ"] = &fstest.MapFile{Data: []byte("DMLC_ROLE=" + tc.role + "\x00DMLC_PS_ROOT_URI=198.18.0.1\x00DMLC_PS_ROOT_PORT=8000\x00")}
		s, err := f.Take(Look{})
		if err != nil || len(s.Processes) != 1 || s.Processes[0].Role != tc.want {
			t.Errorf("began at %s as %s: %+v, %v; want a %s", tc.began, tc.role, s, err, tc.want)
		}
	}
}

func TestNodesHaveABound(t *testing.T) {
	proc := nodes(1)
	f := NewFinder(proc)
	f.most = 20
	for i := range f.most + 10 {
		proc.MapFS[fmt.Sprintf("%d/environ", 200+i)] = proc.MapFS["100/environ"]
	}
	s, err := f.Take(Look{})
	if err != nil || len(s.Processes) != f.most || s.LeftOut != 11 {
		t.Fatalf("%d nodes and %d left out, %v; want %d and 11", len(s.Processes), s.LeftOut, err, f.most)
	}
}

// Whatever a process puts into its environment and arguments, little is kept.
func TestDescriptionHasABound(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	proc := nodes(1)
	proc.MapFS["100/environ"] = &fstest.MapFile{Data: []byte("A=" + long + "\x00DMLC_X" + long + "=1\x00DMLC_PS_VAN_TYPE=" + long +
		"\x00DMLC_ROLE=worker\x00DMLC_PS_ROOT_URI=198.18.0.1\x00DMLC_PS_ROOT_PORT=8000\x00DMLC_NUM_SERVER=2000000000\x00")}
	proc.MapFS["100/cmdline"] = &fstest.MapFile{Data: []byte(long)}
	s, err := Take(proc, nil, nil)
	if err != nil || len(s.Processes) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	p := s.Processes[0]
	if len(p.Command) > maxCommand || p.Van != "" || p.Servers != 0 {
		t.Errorf("a command of %d bytes, van %.10q, %d servers", len(p.Command), p.Van, p.Servers)
	}
}

// The zone of an address is any text: it gets into no job's name.
func TestZonesAreNoNames(t *testing.T) {
	proc := nodes(1)
	const hostile = "fe80::1%\x1b[2J\xff"
	proc.MapFS["100/environ"] = &fstest.MapFile{Data: []byte("DMLC_ROLE=worker\x00DMLC_NODE_HOST=" + hostile + "\x00DMLC_PS_ROOT_URI=" + hostile + "\x00DMLC_PS_ROOT_PORT=9000\x00")}
	proc.MapFS["100/root/etc/hosts"] = &fstest.MapFile{Data: []byte(hostile + " " + hostile + "\n")}
	s, err := Take(proc, nil, nil)
	if err != nil || len(s.Processes) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	if p := s.Processes[0]; p.Scheduler.IsValid() || fmt.Sprintf("%v", p.Listens) != "[]" {
		t.Errorf("the scheduler is at %q, it listens at %q", p.Scheduler, p.Listens)
	}
}

// A role that is no text gets into no report: the report of the whole host could not be sent.
func TestRolesAreText(t *testing.T) {
	for _, role := range []string{"worker\xff", "\x1b[2Jworker", "work\ner"} {
		proc := nodes(2)
		proc.MapFS["100/environ"] = &fstest.MapFile{Data: []byte("DMLC_ROLE=" + role + "\x00DMLC_PS_ROOT_URI=198.18.0.1\x00DMLC_PS_ROOT_PORT=8000\x00PSIDECAR_JOB=x\x00")}
		s, err := Take(proc, nil, nil)
		if err != nil || len(s.Processes) != 1 || s.Processes[0].PID != 101 {
			t.Errorf("with the role %q: %+v, %v; want the other process alone", role, s, err)
		}
	}
}

// succession is a /proc in which process 100 ends once its environment was read, and its number is
// another one's from then on.
type succession struct {
	fstest.MapFS
	next fstest.MapFS
}

func (s *succession) Open(name string) (fs.File, error) {
	f, err := s.MapFS.Open(name)
	if name == "100/environ" && s.next != nil {
		s.MapFS, s.next = s.next, nil
	}
	return f, err
}

// What a process says does not count for the one that gets its number meanwhile.
func TestReusedNumberMixesNoProcesses(t *testing.T) {
	process := func(began, environ, cgroup string) fstest.MapFS {
		return fstest.MapFS{
			"100/stat":    {Data: []byte("100 (a) S " + strings.Repeat("1 ", 18) + began + " 1 2 3\n")},
			"100/environ": {Data: []byte(environ)},
			"100/cgroup":  {Data: []byte("0::" + cgroup + "\n")},
		}
	}
	const node = "DMLC_ROLE=worker\x00DMLC_PS_ROOT_URI=198.18.0.1\x00DMLC_PS_ROOT_PORT=8000\x00"
	for name, next := range map[string]struct {
		environ string
		nodes   int
	}{"no node": {"HOME=/\x00", 0}, "a node": {node, 1}} {
		t.Run(name, func(t *testing.T) {
			proc := &succession{process("500", node+"PSIDECAR_JOB=forged\x00", "/hostile"), process("501", next.environ, "/job")}
			s, err := Take(proc, nil, nil)
			if err != nil || len(s.Processes) != next.nodes {
				t.Fatalf("found %+v, %v; want %d nodes", s, err, next.nodes)
			}
			for _, p := range s.Processes {
				if len(p.Settings) > 0 || p.Cgroup != "/job" {
					t.Errorf("the process in %s has the settings %v of the one before", p.Cgroup, p.Settings)
				}
			}
		})
	}
}

// Many descriptors that all processes share are remembered once for each up to a
// bound, and not for each process.
func TestSharedDescriptorsHaveABound(t *testing.T) {
	const processes, each = 40, 20_000
	tree := fstest.MapFS{}
	table := strings.Builder{}
	table.WriteString(tcpHeader)
	for i := range each {
		fmt.Fprintf(&table, "   0: 020012C6:%04X %08X:1F40 01 0:0 00:0 0     0        0 %d 1 0\n", i%65536, i, 7000+i)
	}
	env := nodes(1).MapFS["100/environ"]
	for p := range processes {
		dir := fmt.Sprint(100 + p)
		tree[dir+"/environ"] = env
		tree[dir+"/ns/net"] = &fstest.MapFile{Data: []byte("net:[1]"), Mode: fs.ModeSymlink}
		tree[dir+"/net/tcp"] = &fstest.MapFile{Data: []byte(table.String())}
	}
	proc := descriptors{tree, each}
	f := NewFinder(proc)
	s, err := f.Take(Look{})
	if err != nil || len(s.Processes) != processes {
		t.Fatalf("%d processes, %v", len(s.Processes), err)
	}
	if len(s.owners) > maxOfProcess {
		t.Errorf("%d connections, of %d descriptors a process", len(s.owners), maxOfProcess)
	}
	owned := 0
	for _, n := range f.nodes {
		owned += len(n.owned)
	}
	if owned > maxConnections {
		t.Errorf("%d connections are remembered, at most %d may be", owned, maxConnections)
	}
}

// descriptors gives every process of a tree n sockets.
type descriptors struct {
	fstest.MapFS
	each int
}

func (d descriptors) ReadDir(name string) ([]fs.DirEntry, error) {
	if !strings.HasSuffix(name, "/fd") {
		return d.MapFS.ReadDir(name)
	}
	all := make([]fs.DirEntry, d.each)
	for i := range all {
		all[i] = entry(fmt.Sprint(i))
	}
	return all, nil
}

func (d descriptors) ReadLink(name string) (string, error) {
	_, n, ok := strings.Cut(name, "/fd/")
	if !ok {
		return d.MapFS.ReadLink(name)
	}
	var i int
	if _, err := fmt.Sscan(n, &i); err != nil {
		return "", err
	}
	return fmt.Sprintf("socket:[%d]", 7000+i), nil
}

// entry is a name in a folder.
type entry string

func (e entry) Name() string             { return string(e) }
func (entry) IsDir() bool                { return false }
func (entry) Type() fs.FileMode          { return fs.ModeSymlink }
func (entry) Info() (fs.FileInfo, error) { return nil, fs.ErrNotExist }
