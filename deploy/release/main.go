// Command release puts together what a release has, in one folder: an archive for each platform
// with the programs, manual pages, shell completions and systemd units, packages of
// distributions, the container images as one archive of an OCI layout and as tar files that
// engines load, bills of materials, what has changed, SHA256SUMS of all of it, and a signature
// of that.
//
// The same input gives the same bytes: times in archives are SOURCE_DATE_EPOCH, order is by
// name. The signature is minisign's (Ed25519), which is verified with a public key and no
// network: minisign -Vm SHA256SUMS -p psidecar.pub.
//
// Its input is folders with static programs, given as linux/amd64=FOLDER, and the folders that
// earlier steps have written: images, manual pages, completions, packages. It builds nothing itself. make
// release calls it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// main runs the command. Any error is exit code 1.
func main() {
	if err := run(os.Args[1:], os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options are what a release is made of.
type options struct {
	out, version, root, image, man, completions, packages, key, password string    // all but version and password are paths
	made                                                                 time.Time // in archives
	platforms                                                            []platform
}

// platform is a folder of programs for an operating system and an architecture.
type platform struct{ os, arch, dir string }

// suffix returns the platform as it is in names of files.
func (p platform) suffix() string { return p.os + "-" + p.arch }

// run makes a release and prints the names of its files. Version, changes and key are checked
// before anything is removed. SHA256SUMS comes after all files that it lists, and the signature
// last, so that a release with a signature is whole.
func run(args []string, environment func(string) string, out io.Writer) error {
	o, err := parse(args, environment)
	if err != nil {
		return err
	}
	changes, err := o.changes()
	if err != nil {
		return err
	}
	// Deriving the key from a password takes a second, and its failure is to come before the
	// old release is removed.
	sign, err := signer(o.key, o.password)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return fmt.Errorf("removing what was in %s: %w", o.out, err)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.out, o.name("changes.md")), changes, 0o644); err != nil {
		return err
	}
	for _, p := range o.platforms {
		if err := o.writePlatform(p); err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
	}
	layout := archive{made: o.made}
	if err := layout.addFolder("", filepath.Join(o.image, "oci")); err != nil {
		return fmt.Errorf("image layout (make image writes it): %w", err)
	}
	if err := layout.write(filepath.Join(o.out, o.name("image.oci.tar"))); err != nil {
		return err
	}
	if err := o.copyPackages(); err != nil {
		return err
	}
	names, err := writeSums(o.out)
	if err != nil {
		return err
	}
	for _, n := range names {
		fmt.Fprintln(out, filepath.Join(o.out, n))
	}
	if sign == nil {
		fmt.Fprintln(out, "not signed: --key names a file with a key (minisign -G makes one)")
		return nil
	}
	return sign(filepath.Join(o.out, "SHA256SUMS"), "psidecar "+o.version)
}

// plainVersion matches versions that can be in names of files.
var plainVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

// parse reads flags, arguments and the environment. The password comes from the environment
// alone, since other users see arguments.
func parse(args []string, environment func(string) string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", "bin/release", "folder to write; what an earlier run left there is replaced")
	flags.StringVar(&o.version, "version", "devel", "version, as git describe says it")
	flags.StringVar(&o.root, "root", ".", "folder of the source: CHANGELOG.md, LICENSE and deploy/systemd come from it")
	flags.StringVar(&o.image, "image", "bin/image", "folder that deploy/image has written")
	flags.StringVar(&o.man, "man", "bin/man", "folder with manual pages")
	flags.StringVar(&o.completions, "completions", "bin/completions", "folder with shell completions")
	flags.StringVar(&o.packages, "packages", "", "folder with packages of distributions (make packages writes it), which are copied. Empty: none")
	flags.StringVar(&o.key, "key", "", "file with minisign's secret key; one with a password has it in MINISIGN_PASSWORD. Empty: not signed")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	o.password = environment("MINISIGN_PASSWORD")
	if !plainVersion.MatchString(o.version) {
		return nil, fmt.Errorf("--version %q: want letters, digits and . _ + -", o.version)
	}
	if strings.HasSuffix(o.version, "-dirty") {
		return nil, fmt.Errorf("--version %s: the source has changes that are not committed, so that nobody could make this release again; commit them", o.version)
	}
	// 1970 without the variable: a release that says nothing of its time is still the same each
	// time.
	seconds := int64(0)
	if text := environment("SOURCE_DATE_EPOCH"); text != "" {
		var err error
		if seconds, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH=%q: want seconds since 1970", text)
		}
	}
	o.made = time.Unix(seconds, 0).UTC()
	for _, arg := range flags.Args() {
		name, dir, ok := strings.Cut(arg, "=")
		system, arch, both := strings.Cut(name, "/")
		if !ok || !both || system == "" || arch == "" || strings.ContainsAny(arch, "/.") || dir == "" {
			return nil, fmt.Errorf("%q: want OS/ARCH=FOLDER, such as linux/amd64=bin/linux/amd64", arg)
		}
		o.platforms = append(o.platforms, platform{system, arch, dir})
	}
	if len(o.platforms) == 0 {
		return nil, errors.New("no programs given; want OS/ARCH=FOLDER ..., such as linux/amd64=bin/linux/amd64")
	}
	return o, nil
}

// name returns the name of a file of the release.
func (o *options) name(what string) string { return "psidecar-" + o.version + "-" + what }

// programs are the files that each platform's folder must hold.
var programs = []string{"psidecar", "psjob"}

// writePlatform writes what there is for a platform: the archive to unpack, the image that
// engines load, and the image's bill of materials, which is the program's too. Errors say which
// step makes what is missing.
func (o *options) writePlatform(p platform) error {
	for name, to := range map[string]string{"psidecar-" + p.suffix() + ".tar": "image-" + p.suffix() + ".tar", "psidecar-" + p.suffix() + ".cdx.json": p.suffix() + ".cdx.json"} {
		if err := copyFile(filepath.Join(o.image, name), filepath.Join(o.out, o.name(to))); err != nil {
			return fmt.Errorf("image (make image writes it): %w", err)
		}
	}
	a := archive{made: o.made}
	top := "psidecar-" + o.version + "-" + p.suffix() + "/"
	for _, name := range programs {
		if err := a.addFile(top+"bin/"+name, filepath.Join(p.dir, name), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"LICENSE", "CHANGELOG.md"} {
		if err := a.addFile(top+name, filepath.Join(o.root, name), 0o644); err != nil {
			return err
		}
	}
	if err := a.addFolder(top+"share/man/man1/", o.man); err != nil {
		return fmt.Errorf("manual pages (make man writes them): %w", err)
	}
	for from, to := range completions {
		if err := a.addFile(top+to, filepath.Join(o.completions, from), 0o644); err != nil {
			return fmt.Errorf("completions (make completions writes them): %w", err)
		}
	}
	units, err := filepath.Glob(filepath.Join(o.root, "deploy/systemd/*.service"))
	if err != nil || len(units) == 0 {
		return fmt.Errorf("no units in %s/deploy/systemd: %w", o.root, err)
	}
	for _, u := range append(units, filepath.Join(o.root, "deploy/systemd/config.yaml")) {
		if err := a.addFile(top+"share/psidecar/systemd/"+filepath.Base(u), u, 0o644); err != nil {
			return err
		}
	}
	return a.write(filepath.Join(o.out, o.name(p.suffix()+".tar.gz")))
}

// copyPackages copies debs and rpms under the names that they have.
func (o *options) copyPackages() error {
	if o.packages == "" {
		return nil
	}
	copied := 0
	for _, pattern := range []string{"*.deb", "*.rpm"} {
		files, err := filepath.Glob(filepath.Join(o.packages, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := copyFile(f, filepath.Join(o.out, filepath.Base(f))); err != nil {
				return err
			}
		}
		copied += len(files)
	}
	if copied == 0 {
		return fmt.Errorf("no packages in %s (make packages writes them)", o.packages)
	}
	return nil
}

// completions are the places where shells look for them, below a prefix such as /usr/local, by
// the files that psidecar completion writes.
var completions = map[string]string{
	"psidecar.bash": "share/bash-completion/completions/psidecar",
	"_psidecar":     "share/zsh/site-functions/_psidecar",
	"psidecar.fish": "share/fish/vendor_completions.d/psidecar.fish",
}
