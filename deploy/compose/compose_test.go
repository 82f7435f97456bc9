// Package compose has what runs psidecar in containers without Kubernetes. Its tests check what
// can be checked without a container engine.
package compose

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

type service struct {
	Command, Entrypoint []string
	CapAdd              []string `json:"cap_add"`
	Environment         map[string]string
	NetworkMode         string `json:"network_mode"`
	Pid                 string
	Networks            map[string]struct {
		Address string `json:"ipv4_address"`
	}
	Build struct{ Context, Dockerfile string }
}

func services(t *testing.T) map[string]service {
	t.Helper()
	text := require.Value(os.ReadFile("compose.yaml"))(t)
	var file struct{ Services map[string]service }
	require.NoError(t, yaml.Unmarshal(text, &file))
	return file.Services
}

// TestServices: commands have flags that there are, each node of the job is where its variables
// say, and there are as many as these say.
func TestServices(t *testing.T) {
	all := services(t)
	programs := map[string]string{"/psidecar": hoststest.BuildJob(t, "cmd/psidecar"), "/psjob": hoststest.BuildJob(t, "cmd/psjob")}
	roles := map[string]int{}
	for name, s := range all {
		words := slices.Concat(s.Entrypoint, s.Command)
		if len(s.Entrypoint) == 0 { // a host; its command is looked at below
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if s.Networks["mesh"].Address == "" {
				t.Errorf("%s has no address", name)
			}
			continue
		}
		if out, err := exec.Command(programs[words[0]], append(words[1:], "--help")...).CombinedOutput(); err != nil {
			t.Errorf("%s: %q: %v\n%s", name, words, err, out)
		}
		roles[s.Environment["DMLC_ROLE"]]++
		host, ok := strings.CutPrefix(s.NetworkMode, "service:")
		if !ok || s.Pid != s.NetworkMode || all[host].Networks["mesh"].Address != s.Environment["DMLC_NODE_HOST"] {
			t.Errorf("%s has the network of %q, the processes of %q, and says that it is %s", name, s.NetworkMode, s.Pid, s.Environment["DMLC_NODE_HOST"])
		}
		if root := s.Environment["DMLC_PS_ROOT_URI"]; root != all["scheduler"].Environment["DMLC_NODE_HOST"] {
			t.Errorf("%s looks for the scheduler at %s", name, root)
		}
	}
	for _, h := range []string{"host1", "host2"} {
		words := append(slices.Clone(all[h].Command), "--help")
		if out, err := exec.Command(programs["/psidecar"], words...).CombinedOutput(); err != nil {
			t.Errorf("%s: %q: %v\n%s", h, words, err, out)
		}
	}
	if roles["scheduler"] != 1 || roles["server"] != 2 || roles["worker"] != 2 {
		t.Errorf("the job has %v", roles)
	}
}

// TestCapabilities: a host has the agent's capabilities, as its unit says.
func TestCapabilities(t *testing.T) {
	unit := require.Value(os.ReadFile("../systemd/psidecar-agent.service"))(t)
	line := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(unit)
	if line == nil {
		t.Fatal("the agent's unit names no capabilities")
	}
	want := strings.Fields(strings.ReplaceAll(string(line[1]), "CAP_", ""))
	if have := services(t)["host1"].CapAdd; !slices.Equal(have, want) {
		t.Errorf("a host has %q, the agent's unit %q", have, want)
	}
}

// TestDockerfile: the image's programs are built as make build does.
func TestDockerfile(t *testing.T) {
	docker := require.Value(os.ReadFile("Dockerfile"))(t)
	makefile := require.Value(os.ReadFile("../../Makefile"))(t)
	static := regexp.MustCompile(`(?m)^STATIC := \$\(GO\) (build .*)"$`).FindSubmatch(makefile)
	if static == nil {
		t.Fatal("the Makefile has no STATIC")
	}
	want := strings.NewReplacer("$(VERSION)", "$VERSION", "build -trimpath ", "build -trimpath -tags=grpcnotrace ").Replace(string(static[1]))
	if !strings.Contains(string(docker), "CGO_ENABLED=0 go "+want) {
		t.Errorf("the Dockerfile does not build by %q", want)
	}
	gomod := require.Value(os.ReadFile("../../go.mod"))(t)
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(gomod)
	if !strings.Contains(string(docker), "FROM golang:"+string(version[1])+" ") {
		t.Errorf("the Dockerfile does not build with Go %s", version[1])
	}
}
