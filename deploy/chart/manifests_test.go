package chart

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestManifests: deploy/manifests are made of the chart as it is. That they are
// what helm renders is for test/kubernetes, which has helm; here sums of both
// tell whether either was changed since.
func TestManifests(t *testing.T) {
	const made = "make manifests renders them anew"
	text := require.Value(os.ReadFile("../manifests/SHA256SUMS"))(t)
	sums := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			t.Fatalf("SHA256SUMS has the line %q", line)
		}
		sums[name] = sum
	}
	var files []string
	for _, pattern := range []string{"chart/Chart.yaml", "chart/values.yaml", "chart/templates/*.*", "chart/templates/tests/*", "manifests/*.yaml"} {
		found, err := filepath.Glob("../" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no file is %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		text := require.Value(os.ReadFile(file))(t)
		name := strings.TrimPrefix(file, "../")
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != sums[name] {
			t.Errorf("deploy/%s is not what the manifests were made of or as: %s", name, made)
		}
		delete(sums, name)
	}
	for name := range sums {
		t.Errorf("deploy/%s has gone: %s", name, made)
	}
}

// TestProxiesFollowThePlanner: proxies follow the planner also where they carry
// out no plans, so that rules for values reach them and codecs can be tried.
func TestProxiesFollowThePlanner(t *testing.T) {
	text := require.Value(os.ReadFile("../manifests/proxy.yaml"))(t)
	_, proxy, ok := strings.Cut(string(text), "- proxy\n")
	proxy, _, end := strings.Cut(proxy, "env:")
	if !ok || !end || strings.Contains(proxy, "--act") {
		t.Fatalf("the manifest has no proxy, or one that carries out plans: %q", proxy)
	}
	for _, flag := range []string{"--planner=psidecar-planner.psidecar.svc:9811", "--planner-cert=/etc/psidecar/tls/tls.crt"} {
		if !strings.Contains(proxy, flag) {
			t.Errorf("the proxy is started without %s: %s", flag, proxy)
		}
	}
}
