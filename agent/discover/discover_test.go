package discover

import (
	"io/fs"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/test/require"
)

const tcpHeader = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

// recorded is a /proc tree of a server (100), a worker in a pod (200), the
// shell that started it (150) and a process that is none of PS-lite's (300).
func recorded() fstest.MapFS {
	env := func(vars ...string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(strings.Join(vars, "\x00") + "\x00")}
	}
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	link := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s), Mode: fs.ModeSymlink} }
	job := []string{"DMLC_PS_ROOT_URI=198.18.0.1", "DMLC_PS_ROOT_PORT=8000", "DMLC_NUM_SERVER=2", "DMLC_NUM_WORKER=3"}
	table := text(tcpHeader +
		"   0: 00000000:9088 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7001 1 0 100 0 0 10 0\n" +
		"   1: 020012C6:9088 030012C6:C350 01 00000000:00000000 00:00000000 00000000     0        0 7002 1 0 100 0 0 10 0\n" +
		"   2: 020012C6:AAAA 010012C6:1F40 01 00000000:00000000 00:00000000 00000000     0        0 7003 1 0 100 0 0 10 0\n")
	return fstest.MapFS{
		"100/environ": env(append(job, "DMLC_ROLE=server")...),
		"100/cmdline": text("psjob\x00--role\x00server\x00"),
		"100/cgroup":  text("1:name=systemd:/\n0::/job\n"),
		"100/ns/net":  link("net:[1]"),
		"100/fd/0":    link("/dev/null"),
		"100/fd/3":    link("socket:[7001]"),
		"100/fd/4":    link("socket:[7002]"),
		"100/fd/5":    link("socket:[7003]"),
		"100/net/tcp": table,

		"150/environ": env(append(job, "DMLC_ROLE=worker")...),
		"150/cgroup":  text("0::/job\n"),
		"150/ns/net":  link("net:[2]"),

		"200/environ": env(append(job, "DMLC_ROLE=worker", "DMLC_NODE_HOST=fd00::3")...),
		"200/cgroup":  text("0::/kubepods/besteffort/pod11-22/abcdef\n"),
		"200/ns/net":  link("net:[2]"),
		"200/fd/9":    link("socket:[9001]"),
		"200/net/tcp6": text(tcpHeader +
			"   0: 00000000000000000000000000000000:1388 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 9001 1 0\n"),

		"300/environ":   env("HOME=/root"),
		"version":       text("Linux"),
		"self/environ":  env("DMLC_ROLE=worker"),
		"400/environ":   env("DMLC_ROLE=worker", "DMLC_PS_ROOT_URI=no-port"),
		"500/not-there": text(""),
	}
}

// Take takes a single snapshot of the processes below proc, without a cache; see [Finder.Take].
func Take(proc fs.FS, watched func(cgroup string) bool, other func(pid int) bool) (*Snapshot, error) {
	return NewFinder(proc).Take(Look{Watched: watched, Other: other})
}

func TestTake(t *testing.T) {
	s := require.Value(Take(recorded(), nil, nil))(t)
	address := netip.MustParseAddrPort
	want := []Process{
		{
			PID: 100, Command: "psjob --role server", Role: "server", Scheduler: address("198.18.0.1:8000"), SchedulerName: "198.18.0.1",
			Servers: 2, Workers: 3, Cgroup: "/job", netns: "net:[1]", Listens: []netip.AddrPort{address("198.18.0.2:37000")},
		},
		{PID: 150, Role: "worker", Scheduler: address("198.18.0.1:8000"), SchedulerName: "198.18.0.1", Servers: 2, Workers: 3, Cgroup: "/job", netns: "net:[2]"},
		{
			PID: 200, Role: "worker", Scheduler: address("198.18.0.1:8000"), SchedulerName: "198.18.0.1", Servers: 2, Workers: 3,
			Cgroup: "/kubepods/besteffort/pod11-22/abcdef", Pod: "11-22", Container: "abcdef", netns: "net:[2]",
			Listens: []netip.AddrPort{address("[fd00::3]:5000")},
		},
	}
	if !reflect.DeepEqual(s.Processes, want) {
		t.Errorf("got  %+v\nwant %+v", s.Processes, want)
	}
	p, ok := s.Owner(address("198.18.0.2:37000"), address("198.18.0.3:50000"))
	if !ok || p.PID != 100 {
		t.Errorf("owner of the accepted connection: %+v, %v", p, ok)
	}
	if _, ok := s.Owner(address("198.18.0.3:50000"), address("198.18.0.2:37000")); ok {
		t.Error("the other end is on another host and has an owner")
	}
	if group, err := CgroupOf(recorded(), 100); err != nil || group != "/job" {
		t.Errorf("cgroup of 100: %q, %v", group, err)
	}
	if _, err := CgroupOf(recorded(), 300); err == nil {
		t.Error("a process without cgroup file must be an error")
	}
}

// TestNamedScheduler: processes that know the scheduler by name, as those in pods
// do.
func TestNamedScheduler(t *testing.T) {
	node := func(role, table, hosts string) fstest.MapFS {
		proc := fstest.MapFS{
			"1/environ": {Data: []byte("DMLC_ROLE=" + role + "\x00DMLC_PS_ROOT_URI=job-scheduler.jobs\x00DMLC_PS_ROOT_PORT=8000\x00")},
			"1/cgroup":  {Data: []byte("0::/job\n")},
			"1/fd/3":    {Data: []byte("socket:[7001]"), Mode: fs.ModeSymlink},
			"1/fd/4":    {Data: []byte("socket:[7002]"), Mode: fs.ModeSymlink},
			"1/net/tcp": {Data: []byte(tcpHeader + table)},
		}
		if hosts != "" {
			proc["1/root/etc/hosts"] = &fstest.MapFile{Data: []byte(hosts)}
		}
		return proc
	}
	const (
		listening = "   0: 00000000:1F40 00000000:0000 0A 0:0 00:0 0     0        0 7001 1 0\n"
		accepted  = "   1: 010012C6:1F40 030012C6:C350 01 0:0 00:0 0     0        0 7002 1 0\n"
		connected = "   1: 030012C6:C350 010012C6:1F40 01 0:0 00:0 0     0        0 7002 1 0\n"
		anothers  = "   1: 030012C6:C350 090012C6:1F40 01 0:0 00:0 0     0        0 9999 1 0\n"
	)
	for _, tc := range []struct {
		name string
		proc fstest.MapFS
		want string // empty: not known
	}{
		{"scheduler, of a connection", node("scheduler", listening+accepted, ""), "198.18.0.1:8000"},
		{"scheduler that nobody has met", node("scheduler", listening, ""), ""},
		{"worker, of its connection", node("worker", connected, ""), "198.18.0.1:8000"},
		{"worker, another's connection", node("worker", anothers, ""), ""},
		{"worker, hosts file", node("worker", "", "# job-scheduler.jobs is\n198.18.0.7\tlocal job-scheduler job-scheduler.jobs # here\n"), "198.18.0.7:8000"},
		{"worker, hosts file without it", node("worker", "", "198.18.0.7 job-scheduler\n"), ""},
	} {
		s, err := Take(tc.proc, nil, nil)
		if err != nil || len(s.Processes) != 1 {
			t.Fatalf("%s: %+v, %v", tc.name, s, err)
		}
		p := s.Processes[0]
		if got := p.Scheduler; tc.want == "" && got.IsValid() || tc.want != "" && got.String() != tc.want {
			t.Errorf("%s: the scheduler is at %v, want %q", tc.name, got, tc.want)
		}
		if p.SchedulerName != "job-scheduler.jobs" {
			t.Errorf("%s: name %q", tc.name, p.SchedulerName)
		}
	}
}

// Two network namespaces with the same addresses: of the job in the watched
// cgroups, and of another one, whose processes are not to be mistaken for it.
func TestTakeWatchedCgroups(t *testing.T) {
	proc := recorded()
	for name, f := range recorded() { // the other job: same environment, addresses and socket numbers
		pid, rest, _ := strings.Cut(name, "/")
		switch {
		case pid != "100" && pid != "200":
		case rest == "cgroup":
			proc["9"+pid+"/cgroup"] = &fstest.MapFile{Data: []byte("0::/job-of-others/x\n")}
		case rest == "ns/net":
			proc["9"+pid+"/ns/net"] = &fstest.MapFile{Data: []byte("net:[9]"), Mode: fs.ModeSymlink}
		default:
			proc["9"+pid+"/"+rest] = f
		}
	}
	ends := [2]netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:37000"), netip.MustParseAddrPort("198.18.0.3:50000")}
	for _, tc := range []struct {
		name    string
		watched func(string) bool
		pids    []int
		owner   int
	}{
		{"all", nil, []int{100, 150, 200, 9100, 9200}, 9100},
		{"the job", func(c string) bool { return c == "/job" }, []int{100, 150}, 100},
		{"a pod", func(c string) bool { return strings.HasPrefix(c, "/kubepods/") }, []int{200}, 0},
		{"the others", func(c string) bool { return strings.HasPrefix(c, "/job-of-others") }, []int{9100, 9200}, 9100},
		{"none", func(string) bool { return false }, nil, 0},
	} {
		s := require.Value(Take(proc, tc.watched, nil))(t)
		var pids []int
		for _, p := range s.Processes {
			pids = append(pids, p.PID)
		}
		owner := 0
		if p, ok := s.Owner(ends[0], ends[1]); ok {
			owner = p.PID
		}
		if !slices.Equal(pids, tc.pids) || owner != tc.owner {
			t.Errorf("%s: processes %v, owner of the connection %d; want %v, %d", tc.name, pids, owner, tc.pids, tc.owner)
		}
	}
}

func TestPod(t *testing.T) {
	for _, tc := range []struct{ path, pod, container string }{
		{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a_2b.slice/cri-containerd-ff00.scope", "1a-2b", "ff00"},
		{"/kubepods.slice/kubepods-pod1a_2b.slice", "1a-2b", ""},
		{"/kubepods/burstable/pod1a-2b/ff00", "1a-2b", "ff00"},
		{"/kubelet/kubepods/pod1a-2b/ff00", "1a-2b", "ff00"},
		{"/system.slice/docker-ff00.scope", "", ""},
		{"/", "", ""},
	} {
		if pod, container := Pod(tc.path); pod != tc.pod || container != tc.container {
			t.Errorf("%s: %q %q, want %q %q", tc.path, pod, container, tc.pod, tc.container)
		}
	}
}

func FuzzParseSocket(f *testing.F) {
	f.Add("   1: 020012C6:9088 030012C6:C350 01 00000000:00000000 00:00000000 00000000     0        0 7002 1 0")
	f.Add("   0: 00000000000000000000000000000000:1388 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 9001")
	f.Fuzz(func(t *testing.T, line string) {
		if s, ok := parseSocket(line); ok && (!s.local.IsValid() || !s.peer.IsValid() || s.inode == 0) {
			t.Errorf("%q gave %+v", line, s)
		}
	})
}

// What a process asks of psidecar is read with PS-lite's variables, and whose it is;
// a look notices when another program says something else.
func TestSettingsAreReadWithPSLitesVariables(t *testing.T) {
	proc := recorded()
	job := "DMLC_PS_ROOT_URI=198.18.0.1\x00DMLC_PS_ROOT_PORT=8000\x00DMLC_ROLE=worker\x00"
	proc["150/environ"] = &fstest.MapFile{Data: []byte(job + "PSIDECAR_JOB=ctr\x00PSIDECAR_THRESHOLD=0.9\x00PSIDECAR_HTTP=:1\x00PSIDECAR_MOVE=" + strings.Repeat("x", maxValue+1) + "\x00")}
	proc["150/status"] = &fstest.MapFile{Data: []byte("Name:\tUid: 7\nUid:\t1000\t0\t0\t0\n")}
	f := NewFinder(proc)
	look := func(l Look) map[int]Process {
		t.Helper()
		s := require.Value(f.Take(l))(t)
		all := map[int]Process{}
		for _, p := range s.Processes {
			all[p.PID] = p
		}
		return all
	}
	all := look(Look{})
	if p := all[150]; !reflect.DeepEqual(p.Settings, policy.Settings{policy.Job: "ctr", policy.Threshold: "0.9"}) || p.UID != 1000 || !p.Owned {
		t.Errorf("it asks for %v, of user %d (%v)", p.Settings, p.UID, p.Owned)
	}
	if p := all[100]; p.Settings != nil || p.Owned {
		t.Errorf("one that says nothing asks for %v, known %v", p.Settings, p.Owned)
	}
	proc["150/environ"] = &fstest.MapFile{Data: []byte(job + "PSIDECAR_JOB=ads\x00")}
	if p := look(Look{Anew: true})[150]; !reflect.DeepEqual(p.Settings, policy.Settings{policy.Job: "ads"}) {
		t.Errorf("then it asks for %v", p.Settings)
	}
	if _, there := look(Look{Leaves: func(p *Process) bool { return p.Settings[policy.Job] == "ads" }})[150]; there {
		t.Error("it does not want to be watched, and is")
	}
}
