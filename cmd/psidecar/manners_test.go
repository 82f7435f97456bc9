package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/require"
)

// What is misspelt, or meant for another command, is named with what was probably
// meant.
func TestDidYouMean(t *testing.T) {
	config := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(config, []byte("treshold: 0.99\n"), 0o600))
	for args, want := range map[string]string{
		"statsu":                        "did you mean status?",
		"plan shwo":                     "did you mean show?",
		"apply":                         "did you mean psidecar plan apply?",
		"plan codecs sett":              "did you mean set?",
		"status --prxoy x":              "did you mean --proxy?",
		"status --threshold 1":          "psidecar up",
		"heatmap --lst 3":               "did you mean --last?",
		"frobnicate":                    "see psidecar --help",
		"status --frobnicate":           "see psidecar status --help",
		"version -q":                    "see psidecar version --help",
		"version --config " + config:    "did you mean threshold?",
		"version --log-format sentence": "use text or json",
	} {
		if code, _, stderr := runTest(t, nil, strings.Fields(args)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q; want 2, %q", args, code, stderr, want)
		}
	}
}

// --version says what version does, and logs are objects where that is wanted.
func TestVersionFlag(t *testing.T) {
	if code, out, _ := runTest(t, nil, "--version"); code != 0 || !strings.Contains(out, version) {
		t.Errorf("exit code %d, %q", code, out)
	}
}

// Environment variables that nearly are flags are named; those that Kubernetes
// makes of services, and others' own, are not.
func TestMisspeltEnvironment(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	var out, errs bytes.Buffer
	code := run(t.Context(), env{args: []string{"version", "--log-format", "json"}, stdin: strings.NewReader(""), stdout: &out, stderr: &errs,
		lookup: func(string) (string, bool) { return "", false },
		environ: func() []string {
			return []string{"PSIDECAR_HASHBINS=3", "PSIDECAR_PLANNER_SERVICE_HOST=10.0.0.1", "PSIDECAR_PLANNER_PORT=tcp://10.0.0.1:9811",
				"PSIDECAR_PLANNER_PORT_9811_TCP_ADDR=10.0.0.1", "PSIDECAR_THRESHOLD=0.9", "PSIDECAR_SOMETHING_ELSE=1", "HASHBINS=3"}
		}})
	var entry struct {
		Name string `json:"name"`
		Mean string `json:"did_you_mean"`
	}
	if err := json.Unmarshal(errs.Bytes(), &entry); code != 0 || err != nil || entry.Name != "PSIDECAR_HASHBINS" || entry.Mean != "PSIDECAR_HASH_BINS" {
		t.Errorf("exit code %d, %v, logged %s", code, err, errs.String())
	}
}

// Ports that are mixed up are explained.
func TestMixedUpPorts(t *testing.T) {
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("\x00\x00\x12\x04\x00\x00\x00\x00\x00")) // as gRPC begins
			c.Close()
		}
	}()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	recorded := httptest.NewServer(page.Handler(&agent.Recorded{}, page.Options{}))
	defer recorded.Close()
	free := require.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	gone := free.Addr().String()
	free.Close()
	for _, c := range []struct{ args, want string }{
		{"status --agent " + l.Addr().String(), "does not speak HTTP: use the --http address"},
		{"status --agent 127.0.0.1:9811", "9811 is usually a planner's API"},
		{"plan show --planner " + strings.TrimPrefix(server.URL, "http://"), "is not a planner's --listen"},
		{"plan show --planner " + gone, "no response (is a planner running, and is this its --listen address?): dial tcp"},
		{"show --http " + l.Addr().String(), "the address is in use"},
		{"status --proxy " + recorded.URL + " --agent " + recorded.URL, "a different psidecar component"},
	} {
		if code, _, stderr := runTest(t, nil, strings.Fields(c.args)...); code != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, %q; want 1, %q", c.args, code, stderr, c.want)
		}
	}
}

// What a flag takes is said in words.
func TestValuesInWords(t *testing.T) {
	for args, want := range map[string]string{
		"up --threshold abc":      `invalid argument "abc" for --threshold: want a share such as 0.99, or auto`,
		"partition -k three":      `invalid argument "three" for --machines: want a whole number`,
		"record --for x":          `invalid argument "x" for --for: want a duration, such as 30s or 5m`,
		"agent --intercept=maybe": `invalid argument "maybe" for --intercept: want true or false`,
	} {
		if code, _, stderr := runTest(t, nil, strings.Fields(args)...); code != 2 || !strings.Contains(stderr, want) || strings.Contains(stderr, "strconv") {
			t.Errorf("%s: exit code %d, %q; want 2, %q", args, code, stderr, want)
		}
	}
}

// Each command has examples, and each example's flags exist and take its values.
func TestExamples(t *testing.T) {
	root := newRootCommand(env{lookup: func(string) (string, bool) { return "", false }})
	for _, cmd := range allCommands(root) {
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			line, _, _ = strings.Cut(line, " #")
			checkCommandLine(t, strings.TrimSpace(line))
		}
	}
}

// checkCommandLine fails where a command line of psidecar's is none.
func checkCommandLine(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(line, `""`, "none"))
	if len(words) == 0 || words[0] != "psidecar" {
		t.Errorf("%q is no command line", line)
		return
	}
	root := newRootCommand(env{lookup: func(string) (string, bool) { return "", false }})
	cmd, rest, err := root.Find(words[1:])
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil && cmd.Args != nil {
		err = cmd.Args(cmd, cmd.Flags().Args())
	}
	if err != nil {
		t.Errorf("%q: %v", line, err)
	}
}

// Values of flags are completed: words from lists, and jobs as agents know them.
func TestCompletion(t *testing.T) {
	agent := fakeAgent(t)
	c, planner := startPlanner(t, plannerFlags{})
	c.Codecs().Jobs = func() map[string]string { return map[string]string{"198.18.0.1:9000": "198.18.0.1:9000"} }
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"partition", "--algorithm", "ts"}, "tsh1"},
		{[]string{"up", "--codec", ""}, "compact"},
		{[]string{"heatmap", "--measure", "pulled"}, "pulled_bytes"},
		{[]string{"heatmap", "--agent", agent, "--job", ""}, "h:1"},
		{[]string{"plan", "codecs", "set", "--planner", planner, "--job", "198"}, "198.18.0.1:9000"},
		{[]string{"restore", "--planner", planner, "--job", ""}, "198.18.0.1:9000"},
		{[]string{"version", "--log-format", ""}, "json"},
	} {
		code, out, stderr := runTest(t, nil, append([]string{cobra.ShellCompRequestCmd}, tc.args...)...)
		if lines := strings.Split(out, "\n"); code != 0 || !slices.Contains(lines, tc.want) {
			t.Errorf("%v: exit code %d, %q %s; want %s", tc.args, code, lines, stderr, tc.want)
		}
	}
}

// There is a manual page for each command, with its flags and examples.
func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if code, _, stderr := runTest(t, nil, "man", dir); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, "psidecar-plan-codecs-set.1"))
	if err != nil || !bytes.Contains(text, []byte("quantize")) || !bytes.Contains(text, []byte("EXAMPLE")) {
		t.Errorf("%v: %.500s", err, text)
	}
}
