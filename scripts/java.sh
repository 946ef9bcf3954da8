#!/usr/bin/env bash
# Print the Java home that Spark is to use (Java 17 or newer), installing one if that is possible.
# Exit code 1, with what to do on stderr, if there is none.
set -euo pipefail

MAJOR_MIN=17

major_of() { # the major version of a java binary: 17 for "17.0.15", 8 for "1.8.0_402"
    "$1" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

suits() { # whether this is a java binary of a version that will do
    [ -x "$1" ] || return 1
    local major
    major=$(major_of "$1") || return 1
    [ -n "$major" ] && [ "$major" -ge "$MAJOR_MIN" ]
}

home_of() { dirname "$(dirname "$(readlink -f "$1")")"; }

find_java() {
    local candidate
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        if suits "$candidate"; then
            home_of "$candidate"
            return 0
        fi
    done
    return 1
}

find_java && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Java $MAJOR_MIN …" >&2
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    install() { apt-get install -y --no-install-recommends "openjdk-$MAJOR_MIN-jre-headless"; }
    if { install || { apt-get update && install; }; } >"$log" 2>&1 </dev/null && find_java; then
        exit 0
    fi
    tail -n 5 "$log" >&2
fi

cat >&2 <<EOF
There is no Java $MAJOR_MIN or newer here. Install one, for example
    apt-get install openjdk-$MAJOR_MIN-jre-headless        (Debian, Ubuntu; as root)
    brew install openjdk@$MAJOR_MIN                        (macOS)
or, without root, unpack any JDK build in your home directory; then set JAVA_HOME to it.
EOF
exit 1
