// Package packages has what makes a deb and an rpm of psidecar.
package packages

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// files are what an installation has below a prefix.
var files = []string{"bin/psidecar", "bin/psjob", "share/man/man1/psidecar.1", "share/man/man1/psidecar-agent.1", "share/bash-completion/completions/psidecar",
	"share/zsh/site-functions/_psidecar", "share/fish/vendor_completions.d/psidecar.fish",
	"lib/systemd/system/psidecar-agent.service", "lib/systemd/system/psidecar-proxy.service", "lib/systemd/system/psidecar-planner.service"}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestInstall: make install puts everything below PREFIX and DESTDIR, with units that start
// what is there, and leaves a configuration file alone.
func TestInstall(t *testing.T) {
	require.Time(t)
	root := t.TempDir()
	config := filepath.Join(root, "etc/psidecar/config.yaml")
	require.NoError(t, os.MkdirAll(filepath.Dir(config), 0o755))
	require.NoError(t, os.WriteFile(config, []byte("mine\n"), 0o600))
	run(t, "make", "install", "PREFIX=/opt/p", "DESTDIR="+root)
	for _, f := range files {
		if _, err := os.Stat(filepath.Join(root, "opt/p", f)); err != nil {
			t.Error(err)
		}
	}
	unit, err := os.ReadFile(filepath.Join(root, "opt/p/lib/systemd/system/psidecar-agent.service"))
	if err != nil || !bytes.Contains(unit, []byte("ExecStart=/opt/p/bin/psidecar agent\n")) {
		t.Errorf("the agent's unit: %v\n%s", err, unit)
	}
	if text, err := os.ReadFile(config); err != nil || string(text) != "mine\n" {
		t.Errorf("the configuration file is now %q, %v", text, err)
	}
	if out := run(t, filepath.Join(root, "opt/p/bin/psidecar"), "version"); !strings.Contains(out, "psidecar") {
		t.Errorf("what is installed says %q", out)
	}
}

// TestPackages: make packages makes packages of both kinds for both machines, with everything
// in place; dpkg reads the debs.
func TestPackages(t *testing.T) {
	require.Time(t)
	run(t, "make", "packages", "VERSION=v1.2.3-4-gabcdef")
	for _, arch := range []string{"amd64", "arm64"} {
		all, err := filepath.Glob("../../bin/packages/psidecar_1.2.3+4.gabcdef*_" + arch + ".deb")
		if err != nil || len(all) != 1 {
			t.Fatalf("debs for %s: %q, %v", arch, all, err)
		}
		deb := strings.TrimPrefix(all[0], "../../")
		list := run(t, "dpkg-deb", "--contents", deb)
		for _, f := range append([]string{"../etc/psidecar/config.yaml"}, files...) {
			if path := "./" + strings.TrimPrefix(filepath.Join("usr", f), "/"); !strings.Contains(list, " "+path+"\n") {
				t.Errorf("%s has no %s:\n%s", deb, path, list)
			}
		}
		info := run(t, "dpkg-deb", "--info", deb)
		for _, want := range []string{"Architecture: " + arch, "Package: psidecar", "Depends: passwd", "conffiles", "preinst", "postinst", "prerm", "postrm"} {
			if !strings.Contains(info, want) {
				t.Errorf("%s lacks %q:\n%s", deb, want, info)
			}
		}
		unit := run(t, "sh", "-c", "dpkg-deb --fsys-tarfile "+deb+" | tar -xO ./usr/lib/systemd/system/psidecar-proxy.service")
		if !strings.Contains(unit, "ExecStart=/usr/bin/psidecar proxy\n") {
			t.Errorf("the proxy's unit in %s:\n%s", deb, unit)
		}
	}
	for _, arch := range []string{"x86_64", "aarch64"} {
		all, err := filepath.Glob("../../bin/packages/psidecar-1.2.3+4.gabcdef*." + arch + ".rpm")
		if err != nil || len(all) != 1 {
			t.Fatalf("rpms for %s: %q, %v", arch, all, err)
		}
		text := require.Value(os.ReadFile(all[0]))(t)
		// The lead and the header, in which names of files and scripts are plain.
		if !bytes.HasPrefix(text, []byte{0xed, 0xab, 0xee, 0xdb}) {
			t.Errorf("%s is no rpm: % x", all[0], text[:4])
		}
		for _, f := range append([]string{"config.yaml"}, files...) {
			if !bytes.Contains(text, append([]byte(filepath.Base(f)), 0)) {
				t.Errorf("%s has no %s", all[0], f)
			}
		}
		for _, want := range []string{"useradd --system", "systemctl try-reload-or-restart psidecar-proxy.service"} {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s has no script with %q", all[0], want)
			}
		}
	}
	// The scripts are sh's.
	scripts, err := filepath.Glob("*.sh")
	if err != nil || len(scripts) != 4 {
		t.Fatalf("scripts: %q, %v", scripts, err)
	}
	for _, s := range scripts {
		run(t, "sh", "-n", "deploy/packages/"+s)
	}
}
