// Command image puts psidecar's static binaries into a container image for several platforms,
// without a container engine: an OCI image layout, with a bill of materials beside each image,
// and a tar file for each platform that engines load.
//
// Its input is one binary for each platform, given as linux/amd64=FILE. Its output is a folder
// that tools for OCI layouts (crane, skopeo, oras) push as it is. The same input gives the same
// bytes, so that anybody can check an image against its source. It needs no root and no
// network.
//
// build.go makes images, sbom.go lists what is in them, write.go writes both.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// main runs the command. Any error is exit code 1.
func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run makes the images and prints a line for each. Everything that can be wrong with the input
// is found before the output folder is replaced. An image that is too large is written all the
// same, so that it can be looked at, and is an error in the end.
func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	dir := flags.String("out", "bin/image", "folder to write; what an earlier run left there is replaced")
	name := flags.String("name", "psidecar", "name of the image in the tar files")
	version := flags.String("version", "devel", "version: tag in the tar files, label in the image")
	most := flags.Int64("max-bytes", 40_000_000, "how large an image may be, compressed, as a node pulls it; 0: as large as it is")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return fmt.Errorf("no binaries given; want OS/ARCH=FILE ..., such as linux/amd64=bin/psidecar")
	}
	// One time for all files of all images, and for their configuration.
	made, err := created()
	if err != nil {
		return err
	}
	var programs []program
	for _, arg := range flags.Args() {
		p, err := readProgram(arg)
		if err != nil {
			return err
		}
		programs = append(programs, p)
	}
	images, err := build(programs, *version, made)
	if err != nil {
		return err
	}
	// An older image of a platform that is not made any more must not stay.
	if err := os.RemoveAll(*dir); err != nil {
		return fmt.Errorf("removing what was in %s: %w", *dir, err)
	}
	if err := writeLayout(filepath.Join(*dir, "oci"), images); err != nil {
		return err
	}
	var large []error
	for _, i := range images {
		if err := writeFiles(*dir, *name, *version, i); err != nil {
			return err
		}
		size, err := compressed(i.image)
		if err != nil {
			return err
		}
		digest, err := i.image.Digest()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-12s %5.1f MB compressed, %d modules listed, %s\n", i.platform, float64(size)/1e6, i.modules, digest)
		if *most > 0 && size > *most {
			large = append(large, fmt.Errorf("%s: %d bytes compressed, --max-bytes allows %d", i.platform, size, *most))
		}
	}
	fmt.Fprintf(out, "image layout: %s\n", filepath.Join(*dir, "oci"))
	return errors.Join(large...)
}

// created returns the time that the image carries: SOURCE_DATE_EPOCH if it is set, as is usual
// for reproducible builds, otherwise 1970.
func created() (v1.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return v1.Time{Time: time.Unix(0, 0).UTC()}, nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return v1.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH=%q: want seconds since 1970", text)
	}
	return v1.Time{Time: time.Unix(seconds, 0).UTC()}, nil
}

// program is one platform's binary, all of it in memory.
type program struct {
	platform v1.Platform
	path     string
	binary   []byte
}

// readProgram reads the binary that an argument OS/ARCH=FILE names, and checks it.
func readProgram(arg string) (program, error) {
	name, path, ok := strings.Cut(arg, "=")
	platform, err := v1.ParsePlatform(name)
	if !ok || err != nil || platform.OS == "" || platform.Architecture == "" {
		return program{}, fmt.Errorf("%q: want OS/ARCH=FILE, such as linux/amd64=bin/psidecar", arg)
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return program{}, fmt.Errorf("binary for %s: %w", name, err)
	}
	if err := checkBinary(binary, *platform); err != nil {
		return program{}, fmt.Errorf("%s: %w", path, err)
	}
	return program{*platform, path, binary}, nil
}
