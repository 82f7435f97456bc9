package agent

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

const (
	routes4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth1\t00000000\t010011AC\t0003\t0\t0\t200\t00000000\t0\t0\t0\n" +
		"eth0\t00000000\t010011AC\t0003\t0\t0\t100\t00000000\t0\t0\t0\n" +
		"eth2\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
	zeros   = "00000000000000000000000000000000"
	routes6 = zeros + " 00 " + zeros + " 00 fe800000000000000000000000000001 00000400 00000002 00000000 00000003 eth6\n" +
		zeros + " 00 " + zeros + " 00 " + zeros + " ffffffff 00000001 00000000 00200200       lo\n" +
		"fe800000000000000000000000000000 40 " + zeros + " 00 " + zeros + " 00000100 00000001 00000000 00000001     eth1\n"
)

func files(named map[string]string) fstest.MapFS {
	f := fstest.MapFS{}
	for name, text := range named {
		f[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return f
}

func TestDefaultInterface(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"the lower metric", map[string]string{"proc/self/net/route": routes4, "proc/self/net/ipv6_route": routes6}, "eth0"},
		{"IPv6 alone", map[string]string{"proc/self/net/route": routes4[:strings.Index(routes4, "\n")+1], "proc/self/net/ipv6_route": routes6}, "eth6"},
		{"no IPv6", map[string]string{"proc/self/net/route": routes4}, "eth0"},
		{"none", map[string]string{"proc/self/net/ipv6_route": "short line\n"}, ""},
	} {
		got, err := defaultInterface(files(c.files))
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestSpeed(t *testing.T) {
	for _, c := range []struct {
		name, speed string
		index       int
		want        uint32
		wrong       string
	}{
		{"a link", "25000\n", 4, 25000, ""},
		{"a virtual one", "-1\n", 4, 0, "no speed"},
		{"another namespace's", "25000\n", 5, 0, "another network namespace"},
		{"nonsense", "fast", 4, 0, "no speed"},
	} {
		root := files(map[string]string{"sys/class/net/eth0/ifindex": "4\n", "sys/class/net/eth0/speed": c.speed})
		got, err := speed(root, "eth0", func(string) int { return c.index })
		if got != c.want || c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %d, %v; want %d, %q", c.name, got, err, c.want, c.wrong)
		}
	}
	if _, err := speed(files(nil), "eth0", func(string) int { return 4 }); err == nil {
		t.Error("an interface that is not there")
	}
}

// What the system says, or that it does not say.
func TestMeasuredIsWhatTheSystemSays(t *testing.T) {
	m := MeasureMachine(os.DirFS("/"))
	if m.Cores < 1 || m.LinkSource == "" || m.LinkMbit > 0 && !strings.HasPrefix(m.LinkSource, "interface ") {
		t.Errorf("%+v", m)
	}
	t.Logf("%+v", m)
}
