"""Chromium without a window, for the tests of the page. Debian's packages chromium and chromium-driver."""
import shutil
import time

from selenium import webdriver
from selenium.common.exceptions import JavascriptException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")


def missing() -> str:
    """Why there is no browser to test with; empty when there is one."""
    if CHROMIUM and DRIVER:
        return ""
    return "no chromium and chromedriver: apt-get install chromium chromium-driver"


class Browser:
    def __init__(self, profile, width: int = 1200, height: int = 850):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                         "--disable-background-networking", "--disable-component-update", "--disable-sync",
                         f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
        self.driver.set_script_timeout(20)
        self.size(width, height)

    def close(self):
        self.driver.quit()

    def size(self, width: int, height: int):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def dark(self, dark: bool):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def open(self, url: str):
        self.driver.get(url)
        self.wait(lambda: self.all("#log > *"), "the page to show itself")

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def script(self, text: str, *arguments):
        return self.driver.execute_script(text, *arguments)

    def text(self, selector: str) -> str:
        """Text of the last element that fits, also of what is not in sight; empty without one."""
        return self.script("return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? ''", selector)

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def keys(self, *keys: str):
        """To whatever has the focus, as a keyboard does."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, modifier: str, key: str):
        webdriver.ActionChains(self.driver).key_down(modifier).send_keys(key).key_up(modifier).perform()

    def wait(self, condition, what: str, seconds: float = 60):
        end = time.monotonic() + seconds
        while True:
            try:
                if found := condition():
                    return found
            except (StaleElementReferenceException, JavascriptException, IndexError):
                pass
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s for {what}; the page:\n{self.text('body main')[:2000]}\n{self.log()}")
            time.sleep(0.03)

    def log(self) -> str:
        return "\n".join(entry["message"] for entry in self.driver.get_log("browser"))

    def ask_with(self, fields: dict):
        """Adds these fields to what the page asks for, until it is loaded again."""
        self.script("""
            const [fields, plain] = [arguments[0], window.fetch];
            window.fetch = (path, options) =>
                plain(path, options.body ? {...options, body: JSON.stringify({...JSON.parse(options.body), ...fields})} : options);""", fields)

    def say(self, text: str):
        """Types a message and sends it with Enter."""
        self.one("#input").click()
        self.keys(text, Keys.ENTER)

    def idle(self) -> bool:
        return self.one("#send").get_attribute("aria-label") == "Send"

    def wait_for_answer(self):
        self.wait(self.idle, "the answer to end")
